// Manifests, and the folders of a checkpoint when a save is killed. checkpoint_test.cpp damages
// them.
#include "frameworks/torch/checkpoint/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/child_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/read_file.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::internal::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Files of many pages that tell their step.
struct Save {
  explicit Save(std::int64_t step, std::size_t elements = 5000)
      : weights(elements, step), state(elements / 3, -step) {
    manifest.save = "save " + std::to_string(step);
    manifest.step = step;
    manifest.time = 1000 + step;
    manifest.ranks_of_nodes = {1};
  }
  void write(CheckpointFolder& folder, bool best = false, const std::string& complete = "") const {
    const FileImage images[] = {{"weights", std::as_bytes(std::span(weights))},
                                {"state", std::as_bytes(std::span(state))}};
    folder.write(manifest, images, best, complete);
  }

  Manifest manifest;
  std::vector<std::int64_t> weights;
  std::vector<std::int64_t> state;
};

/// The newest one whose files are all undamaged; its files hold its step.
std::optional<FoundPart> newest(const std::string& folder) {
  std::vector<FoundPart> parts = contents_of_folder(folder).found;
  for (auto set = newest_complete(parts); !set.empty(); set = newest_complete(parts)) {
    const FoundPart part = set.front();
    bool whole = true;
    for (const ManifestFile& file : part.manifest.files) {
      const auto bytes = read_checked(folder + "/" + part.folder, file);
      whole = whole && bytes.has_value();
      if (!bytes) continue;
      std::int64_t first = 0;
      std::memcpy(&first, bytes->data(), sizeof first);
      EXPECT_EQ(file.name == "weights" ? first : -first, part.manifest.step);
    }
    if (whole) return part;
    std::erase(parts, part);
  }
  return std::nullopt;
}

/// Steps of "last", "previous" and "best"; -1 where there is none.
std::array<std::int64_t, 3> steps_in(const std::string& folder) {
  std::array<std::int64_t, 3> steps{-1, -1, -1};
  const std::string_view slots[] = {"last", "previous", "best"};
  for (const auto& one : contents_of_folder(folder).found) {
    const auto slot = std::ranges::find(slots, one.folder) - slots;
    if (slot < 3) steps[static_cast<std::size_t>(slot)] = one.manifest.step;
  }
  return steps;
}

TEST(CheckpointFolder, KeepsTheLastTwoAndTheBest) {
  const TemporaryFolder temporary;
  const std::string path = temporary.file("a/b");
  CheckpointFolder folder(path);
  for (std::int64_t step = 1; step <= 5; ++step) Save(step).write(folder, step == 2);
  EXPECT_THAT(steps_in(path), ElementsAre(5, 4, 2));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("last", "previous", "best", ".lock"));
  EXPECT_EQ(fs::status(path + "/last").permissions(), fs::perms::owner_all);
  CheckpointFolder second(path);
  expect_error(ErrorCode::invalid_argument, HasSubstr("another writer"),
               [&] { Save(6).write(second); });
  Save(6).write(folder, false, "save 5");  // all ranks have it
  Save(7).write(folder, false, "save 5");
  EXPECT_THAT(steps_in(path), ElementsAre(7, 5, 2));
}

TEST(CheckpointFolder, AFailedSaveLeavesWhatWasThere) {
  const TemporaryFolder temporary;
  const std::string path = temporary.path();
  CheckpointFolder folder(path);
  Save(1).write(folder, true);
  Save second(2);
  const FileImage images[] = {{"weights", std::as_bytes(std::span(second.weights))},
                              {"no/folder", std::as_bytes(std::span(second.state))}};
  expect_error(ErrorCode::invalid_argument, HasSubstr("no/folder\" cannot be made"),
               [&] { folder.write(second.manifest, images, true, ""); });
  EXPECT_EQ(newest(path)->manifest.step, 1);
  EXPECT_FALSE(fs::exists(path + "/.new"));
  Save(3).write(folder);
  EXPECT_THAT(steps_in(path), ElementsAre(3, 1, 1));
}

TEST(CheckpointFolder, EveryFlippedBitAndCutIsFoundAndTheOneBeforeTaken) {
  const TemporaryFolder temporary;
  CheckpointFolder folder(temporary.path());
  for (const std::int64_t step : {1, 2}) Save(step, 300).write(folder);
  auto random = generator();
  for (int i = 0; i < 300; ++i) {
    const char* const files[] = {"last/manifest.json", "last/weights", "last/state"};
    const std::string path = temporary.file(files[i % 3]);
    const std::string intact = read_file(path);
    std::string damaged = intact;
    const std::size_t at = random() % intact.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    if (random() % 3 == 0) damaged.resize(at);
    std::ofstream(path) << damaged;
    const auto found = newest(temporary.path());
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->manifest.step, 1) << path << " at byte " << at;
    std::ofstream(path) << intact;
  }
  EXPECT_EQ(newest(temporary.path())->manifest.step, 2);
}

TEST(CheckpointFolder, LinksAreNotFollowed) {
  const TemporaryFolder temporary;
  const std::string path = temporary.path();
  CheckpointFolder folder(path);
  Save(1).write(folder);
  fs::rename(path + "/last/state", path + "/state");
  fs::create_symlink(path + "/state", path + "/last/state");
  const FolderContents contents = contents_of_folder(path);
  EXPECT_THAT(contents.found, IsEmpty());
  ASSERT_EQ(contents.refused.size(), 1u);
  EXPECT_THAT(contents.refused[0], HasSubstr("last/state\": it is no regular file"));
}

TEST(CheckpointFolder, KilledAtAnyMomentItHoldsTheLastCompletedSave) {
  const TemporaryFolder temporary;
  const std::string path = temporary.path();
  auto random = generator();
  std::int64_t step = 1;
  int staged = 0;
  for (int i = 0; i < 20; ++i) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ChildProcess saving([&] {
      ::close(ends[0]);
      CheckpointFolder writer(path);
      for (std::int64_t next = step;; ++next) {
        Save(next, 200'000).write(writer, next % 3 == 0);
        if (::write(ends[1], &next, sizeof next) != sizeof next) return 1;
      }
    });
    ::close(ends[1]);
    std::int64_t reported = -1;
    EXPECT_GT(::read(ends[0], &reported, sizeof reported), 0);
    EXPECT_EQ(reported, step);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ::kill(saving.pid(), SIGKILL);
    EXPECT_EQ(saving.wait(), -1) << "it has ended by itself";
    while (::read(ends[0], &reported, sizeof reported) > 0) {
    }
    ::close(ends[0]);
    staged += fs::exists(path + "/.new");
    const auto found = newest(path);
    ASSERT_TRUE(found);
    EXPECT_GE(found->manifest.step, reported);
    EXPECT_LE(found->manifest.step, reported + 1);
    step = found->manifest.step + 1;
  }
  EXPECT_GT(staged, 0) << "no kill has met a save";
  // The next save clears the rest.
  CheckpointFolder folder(path);
  Save(step).write(folder);
  EXPECT_FALSE(fs::exists(path + "/.new"));
  EXPECT_THAT(steps_in(path), ElementsAre(step, step - 1, testing::_));
}

// Whatever folders a killed save has left, the next one puts its own and theirs in place.
TEST(CheckpointFolder, FoldersThatAKilledSaveLeavesAreCleared) {
  const char* const left[] = {"last", "previous", "best", ".new", ".new-best"};
  for (int cases = 0; cases < 32; ++cases) {
    SCOPED_TRACE(cases);
    const TemporaryFolder temporary;
    const std::string path = temporary.path();
    const auto has = [&](int i) { return (cases & 1 << i) != 0; };
    for (int i = 0; i < 5; ++i) {
      if (!has(i)) continue;
      CheckpointFolder other(temporary.file("other"));
      Save(i, 5).write(other);
      fs::rename(temporary.file("other/last"), path + "/" + left[i]);
      fs::remove_all(temporary.file("other"));
    }
    for (const char* name : {"/.old", "/.old-best"}) fs::create_directory(path + name);
    CheckpointFolder folder(path);
    Save(9, 5).write(folder);
    const auto first_of = [&](std::initializer_list<int> steps) {
      const auto* const found = std::ranges::find_if(steps, has);
      return found == steps.end() ? -1 : *found;
    };
    EXPECT_THAT(steps_in(path), ElementsAre(9, first_of({3, 0, 1}), first_of({4, 2})));
    for (const char* name : {"/.old", "/.old-best", "/.new", "/.new-best"}) {
      EXPECT_FALSE(fs::exists(path + name)) << name;
    }
  }
}

Manifest example() {
  Manifest manifest;
  manifest.save = "c0ffee";
  manifest.step = 12;
  manifest.epoch = 3;
  manifest.time = 1'700'000'000;
  manifest.ranks_of_nodes = {2, 1};
  manifest.shards = 3;
  manifest.shard = 1;
  manifest.files = {{"state.safetensors", 77, std::string(32, 'a')}, {"b", 0, ""}};
  return manifest;
}

// printf 'hora' | xxh128sum
TEST(Checksum, IsThatOfXxh128sum) {
  const TemporaryFolder temporary;
  CheckpointFolder folder(temporary.path());
  const std::string text = "hora";
  const FileImage image{"text", std::as_bytes(std::span(text))};
  folder.write(Save(1).manifest, {&image, 1}, false, "");
  EXPECT_EQ(contents_of_folder(temporary.path()).found.at(0).manifest.files.at(0).checksum,
            "83cdd6ff99123ee8d4811a98a794b9e8");
}

// As earlier versions have written it, with its members in another order.
TEST(Manifest, ComesBackAndOfEarlierVersionsIsRead) {
  EXPECT_EQ(parse_manifest(to_text(example())).value(), example());
  EXPECT_EQ(parse_manifest(read_file(HORA_TEST_FOLDER "/manifest.json")).value(), example());
}

TEST(Manifest, AnyFlippedBitAndCutIsFound) {
  const std::string text = to_text(example());
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string damaged = text;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(parse_manifest(damaged)) << "bit " << bit;
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(parse_manifest(text.substr(0, size))) << size;
  }
  EXPECT_FALSE(parse_manifest(text + "\n"));
}

std::string problem_of(const Manifest& manifest) {
  const auto parsed = parse_manifest(to_text(manifest));
  return parsed ? "" : parsed.error();
}

TEST(Manifest, FilesLieInItsFolderAndRanksAndShardsAreSome) {
  for (const char* name : {"", "../state", "/etc/passwd", ".", "..", "a/b", "a\\b"}) {
    Manifest manifest = example();
    manifest.files[0].name = name;
    EXPECT_THAT(problem_of(manifest), HasSubstr("not in its folder")) << name;
  }
  Manifest without = example(), beyond = example();
  without.ranks_of_nodes.clear();
  beyond.shard = 3;
  for (const Manifest& manifest : {without, beyond}) {
    EXPECT_THAT(problem_of(manifest), HasSubstr("ranks or shards"));
  }
}

FoundPart part(int rank, const std::string& folder, std::int64_t time, int shards = 0,
               int shard = -1) {
  FoundPart part;
  part.rank = rank;
  part.folder = folder;
  part.manifest.save = "save of " + std::to_string(time);
  part.manifest.step = time;
  part.manifest.time = time;
  part.manifest.shards = shards;
  part.manifest.shard = shard;
  return part;
}

TEST(NewestComplete, IsTheOneSavedLastOnAnyRank) {
  EXPECT_THAT(newest_complete({}), IsEmpty());
  std::vector<FoundPart> found{part(0, "previous", 5), part(1, "last", 7), part(2, "last", 7),
                               part(3, "best", 6)};
  found[0].manifest.step = 900;  // after a return to an earlier step
  EXPECT_THAT(newest_complete(found), ElementsAre(found[1]));
  EXPECT_THAT(newest_complete(found, "best"), ElementsAre(found[3]));
  EXPECT_THAT(newest_complete(found, "next"), IsEmpty());
}

TEST(NewestComplete, LacksNoShard) {
  std::vector<FoundPart> found{part(0, "last", 7, 2), part(0, "rank-0/last", 7, 2, 0),
                               part(0, "previous", 5, 2), part(1, "rank-1/last", 5, 2, 1),
                               part(0, "rank-0/previous", 5, 2, 0)};
  EXPECT_THAT(newest_complete(found), ElementsAre(found[2], found[4], found[3]));
  EXPECT_THAT(missing_shards(found[0].manifest, found), ElementsAre(1));
  found.push_back(part(3, "rank-1/last", 7, 2, 1));
  EXPECT_THAT(newest_complete(found), ElementsAre(found[0], found[1], found[5]));
  EXPECT_THAT(missing_shards(found[0].manifest, found), IsEmpty());
}

}  // namespace
}  // namespace hora::internal::test
