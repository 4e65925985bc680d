// What --resume takes, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <filesystem>
#include <string>

#include "examples/vision/train/training_state.h"
#include "tests/examples/vision/temporary_folder.h"
#include "tests/examples/vision/train/trial_run.h"
#include "tests/frameworks/torch/checkpoint/trained.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

namespace fs = std::filesystem;
using hora::internal::test::seed;
using hora::internal::test::SharedFolder;
using test::message_of;
using test::message_of_common_error;
using test::TrialRun;
using testing::AllOf;
using testing::HasSubstr;

class ResumeTest : public testing::Test {
 protected:
  const hora::Context world_ = hora::init();
};

TEST_F(ResumeTest, WhereThereIsNothingToResumeOnlyAutoBeginsAnew) {
  const SharedFolder folder(world_);
  TrialRun automatic(world_, {.folder = folder.file("empty"), .resume = "auto"});
  EXPECT_EQ(automatic.state->resume(), "");
  TrialRun named(world_, {.resume = folder.file("none")});
  EXPECT_THAT(message_of_common_error([&] { named.state->resume(); }),
              HasSubstr("there is no checkpoint on any rank"));
}

TEST_F(ResumeTest, ASlotThatIsNamedIsTaken) {
  const SharedFolder folder(world_);
  const std::string models = folder.file("a");
  {
    TrialRun run(world_, {.folder = models, .every_steps = 1});
    run.train(3);
    run.state->epoch_done(/*accuracy=*/50);
    run.train(5);
    run.state->wait();
  }
  const auto steps_in = [&](const std::string& named) {
    TrialRun run(world_, {.resume = named});
    EXPECT_EQ(run.state->resume(), named);
    return run.state->progress().steps;
  };
  EXPECT_EQ(steps_in(models), 5);
  EXPECT_EQ(steps_in(models + "/last"), 5);
  EXPECT_EQ(steps_in(models + "/previous"), 4);
  EXPECT_EQ(steps_in(models + "/best"), 3);
  EXPECT_EQ(steps_in(models + "/./best//"), 3);
  {  // what was loaded is not the newest of the folder
    TrialRun run(world_, {.folder = models, .resume = models + "/best"});
    run.state->resume();
    EXPECT_TRUE(run.state->interrupted());
  }
  EXPECT_EQ(steps_in(models), 3);

  if (world_.rank() == 0) fs::rename(models + "/best", models + "/mine");
  hora::barrier(world_);
  TrialRun unnamed(world_, {.resume = models + "/mine"});
  EXPECT_THAT(message_of_common_error([&] { unnamed.state->resume(); }),
              HasSubstr("expected last, previous or best"));
}

TEST_F(ResumeTest, ANewTrainingReplacesNoneInSilence) {
  const SharedFolder folder(world_);
  const std::string models = folder.file("models");
  const auto refusal = [&](const std::string& resume) {
    return message_of([&] { check_unused({.folder = models, .resume = resume}); });
  };
  EXPECT_EQ(refusal(""), "");
  hora::barrier(world_);
  {
    TrialRun run(world_, {.folder = models});
    run.train(3);
    run.state->epoch_done(/*accuracy=*/50);
    run.state->wait();
  }
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("--model-dir " + models + ": it has a training already"),
                                 HasSubstr("--resume auto goes on")));
  EXPECT_THAT(refusal(folder.file("other")), HasSubstr("a training already"));
  for (const std::string& resume : {std::string("auto"), models, models + "/./best//"}) {
    EXPECT_EQ(refusal(resume), "");
  }
}

TEST_F(ResumeTest, APlaceInAnotherOrderIsRefused) {
  const SharedFolder folder(world_);
  const TrainingStateOptions options{.folder = folder.file("a"), .resume = "auto"};
  {
    TrialRun run(world_, options);
    run.train(3);
    run.state->interrupted();
  }
  TrialRun other(world_, options, {}, seed() + 1);
  EXPECT_THAT(message_of_common_error([&] { other.state->resume(); }),
              AllOf(HasSubstr("in epoch 1, after"), HasSubstr("shuffled by seed")));
}

TEST_F(ResumeTest, ADamagedCheckpointIsRefusedByAllRanksAlike) {
  const SharedFolder folder(world_);
  const TrainingStateOptions options{.folder = folder.file("a"), .resume = "auto"};
  {
    TrialRun run(world_, options);
    run.train(3);
    run.state->interrupted();
  }
  if (world_.rank() == 0) fs::resize_file(folder.file("a/last/state.safetensors"), 100);
  hora::barrier(world_);
  TrialRun other(world_, options);
  EXPECT_THAT(message_of_common_error([&] { other.state->resume(); }),
              AllOf(HasSubstr("--resume auto"), HasSubstr("state.safetensors")));
}

TEST_F(ResumeTest, ACheckpointOfAnotherProgramIsRefused) {
  const SharedFolder folder(world_);
  {
    auto model = TrialRun::network();
    hora::Checkpoint other(world_, {.folder = folder.file("a")});
    other.add_weights(*model);
    other.save({.step = 1});
    other.wait();
  }
  TrialRun run(world_, {.resume = folder.file("a")});
  EXPECT_THAT(message_of_common_error([&] { run.state->resume(); }),
              HasSubstr("no progress of a training"));
}

}  // namespace
}  // namespace vision
