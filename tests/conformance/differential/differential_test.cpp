// Programs of collectives against a serial model: each operation by itself, and random programs.
// TEST_PROGRAMS says how many of these (60 without it); TEST_PROGRAM=<seed> runs that one alone.
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "tests/conformance/differential/program.h"
#include "tests/conformance/member.h"
#include "tests/support/random_draws.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

/// A tensor on memory of its own, or in a Buffer; in host memory, or on the rank's device.
class Tensor {
 public:
  Tensor(const Member& member, const Contents& contents, DataType type, bool in_buffer,
         bool on_device)
      : view_{nullptr, type, contents.shape, {}}, bytes_(contents.bytes) {
    if (in_buffer) {
      if (on_device) view_.device = member.context.device();
      buffer_ = Buffer(member.context, std::max<std::size_t>(bytes_.size(), 1), view_.device);
      view_.data = buffer_.data();
      member.write(view_, bytes_);
    } else if (on_device) {
      copy_ = member.device->copy_of(bytes_.data(), bytes_.size());
      view_.device = member.context.device();
      view_.data = copy_->data();
      view_.stream = copy_->stream();
    } else {
      view_.data = bytes_.data();
    }
  }
  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<DeviceCopy> copy_;
  Buffer buffer_;
};

class Runner {
 public:
  Runner(const Program& program, Ranks& ranks, int index)
      : program_(program), me_{ranks.start(index, {}), ranks.device(index)} {
    for (std::size_t i = 1; i < program_.sets.size(); ++i) {
      sets_.push_back(add_process_set(world_, program_.sets[i]));
    }
  }

  int rank() const { return world_.rank(); }
  std::string run() {
    std::ptrdiff_t finished = 0;
    for (const Step& step : schedule(program_, world_.rank())) {
      finished += step.action == Step::Action::start ? 0 : 1;
      if (program_.operations[step.operation].is_disputed()) {
        expect_mismatch(step);
      } else {
        take(step);
      }
    }
    compare_texts();
    const auto is_own = [&](const Operation& o) {
      return place_in(program_.sets[o.set], world_.rank()) >= 0;
    };
    if (finished != std::ranges::count_if(program_.operations, is_own)) {
      wrong_ += "not every operation was run\n";
    }
    if (program_.removes_sets) {
      for (std::size_t i = 1; i < sets_.size(); ++i) remove_process_set(world_, sets_[i]);
    }
    barrier(world_, {.name = "end"});
    return wrong_;
  }

 private:
  struct Open {
    std::optional<Tensor> tensor;
    std::optional<Tensor> output;               ///< of an exchange into it
    std::variant<Handle, ResultHandle> handle;  ///< after the tensors: it ends first
    std::optional<Result> result;               ///< of one that blocked
  };

  void take(const Step& step) {
    if (step.action != Step::Action::wait) start(step.operation);
    if (step.action != Step::Action::start) finish(step.operation);
  }

  void expect_mismatch(const Step& step) {
    try {
      take(step);
      if (step.action != Step::Action::start) note(step.operation, "is no error");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::mismatch) throw;
      texts_[step.operation] = error.what();
      open_.erase(step.operation);
    }
  }

  /// Every member of the set got the same text of each mismatch.
  void compare_texts() {
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      const Operation& o = program_.operations[i];
      if (!o.is_disputed() || place_in(program_.sets[o.set], world_.rank()) < 0) continue;
      const std::string& own = texts_[i];
      for (const std::string& theirs :
           allgather_object(world_, std::string_view(own), {"texts", sets_[o.set]})) {
        if (theirs != own) note(i, "is another error elsewhere: " + theirs + ", here: " + own);
      }
      if (own.find(o.name) == std::string::npos) note(i, "is not named in: " + own);
    }
  }

  void start(std::size_t index) {
    const Operation o = program_.operations[index].submitted_by(world_.rank());
    Open& open = open_[index];
    const bool on_device = me_.device && o.values % 2 == 0;  // on all ranks alike
    const auto own_rank = static_cast<std::uint64_t>(world_.rank());
    open.tensor.emplace(me_, input_of(program_, o, world_.rank()), o.type,
                        (o.values + own_rank) % 3 == 0, on_device);
    const ProcessSet set = sets_[o.set];
    const TensorView tensor = open.tensor->view();
    if (is_exchange(o.kind)) {
      // Into no rank's output, all in Buffers, some ranks', all of which some are in Buffers.
      const std::uint64_t way = (o.values + static_cast<std::uint64_t>(o.phase / 2)) % 4;
      const bool is_odd = own_rank % 2 == 1;
      Contents output = expected_of(program_, o, world_.rank());
      std::ranges::fill(output.bytes, std::byte{0xCD});
      if (way % 2 == 1 || (way == 2 && is_odd)) {
        open.output.emplace(me_, output, o.type, way == 1 || (way == 3 && is_odd), on_device);
      }
    }
    switch (o.kind) {
      case Kind::allreduce: {
        const AllreduceOptions options{o.name, o.op, set, o.prescale, o.postscale};
        if (o.blocking) return allreduce(world_, tensor, options);
        open.handle = allreduce_async(world_, tensor, options);
        return;
      }
      case Kind::broadcast: {
        const BroadcastOptions options{o.name, o.root, set};
        if (o.blocking) return broadcast(world_, tensor, options);
        open.handle = broadcast_async(world_, tensor, options);
        return;
      }
      case Kind::barrier:
        if (o.blocking) return barrier(world_, {o.name, set});
        open.handle = barrier_async(world_, {o.name, set});
        return;
      case Kind::allgather:
        return start_exchange(open, o, AllgatherOptions{o.name, set}, allgather, allgather_async,
                              allgather_into, allgather_into_async);
      case Kind::alltoall:
        return start_exchange(open, o, AlltoallOptions{o.name, splits(o), set}, alltoall,
                              alltoall_async, alltoall_into, alltoall_into_async);
      case Kind::reduce_scatter:
        return start_exchange(
            open, o, ReduceScatterOptions{o.name, o.op, set, o.prescale, o.postscale},
            reduce_scatter, reduce_scatter_async, reduce_scatter_into, reduce_scatter_into_async);
    }
  }

  /// None where all are equal.
  std::vector<std::int64_t> splits(const Operation& operation) const {
    const auto& rows = operation.rows;
    const auto place =
        static_cast<std::size_t>(place_in(program_.sets[operation.set], world_.rank()));
    const bool are_equal = std::ranges::all_of(rows, [&](const auto& own) {
      return std::ranges::count(own, rows[0][0]) == std::ssize(own);
    });
    return are_equal ? std::vector<std::int64_t>() : rows[place];
  }

  template <class Options, class Run, class RunInto, class Begin, class BeginInto>
  void start_exchange(Open& open, const Operation& o, const Options& options, Run* wait_for,
                      Begin* begin, RunInto* wait_for_into, BeginInto* begin_into) {
    const auto submit = [&](auto* plain, auto* into) {
      const TensorView& input = open.tensor->view();
      return open.output ? into(world_, input, open.output->view(), options)
                         : plain(world_, input, options);
    };
    if (o.blocking) {
      open.result = submit(wait_for, wait_for_into);
    } else {
      open.handle = submit(begin, begin_into);
    }
  }

  void finish(std::size_t index) {
    const Operation& operation = program_.operations[index];
    Open open = std::move(open_.extract(index).mapped());
    if (auto* handle = std::get_if<Handle>(&open.handle); handle && handle->valid()) {
      handle->wait();
    } else if (auto* of_result = std::get_if<ResultHandle>(&open.handle)) {
      open.result = of_result->wait();
    }
    const Contents expected = expected_of(program_, operation, world_.rank());
    if (!open.result) {
      if (me_.bytes_of(open.tensor->view()) != expected.bytes) note(index, "differs");
      return;
    }
    const Result& result = *open.result;
    if (result.type() != operation.type) note(index, "has another type");
    if (result.shape() != expected.shape) note(index, "has another shape");
    if (result.rows() != expected.rows) note(index, "has other rows");
    if (open.output && !expected.bytes.empty() &&
        (result.data() != open.output->view().data ||
         result.view().stream != open.output->view().stream)) {
      note(index, "is not in its output");
    }
    if (me_.bytes_of(result.view()) != expected.bytes) note(index, "differs");
    if (me_.bytes_of(open.tensor->view()) != input_of(program_, operation, world_.rank()).bytes) {
      note(index, "has overwritten its input");
    }
  }

  void note(std::size_t index, const std::string& what) {
    const Operation& operation = program_.operations[index];
    wrong_ += "operation " + std::to_string(index) + ", " + name_of(operation.kind) + " \"" +
              operation.name + "\" " + std::string(hora::name_of(operation.op)) + " of " +
              std::string(hora::name_of(operation.type)) + " on set " +
              std::to_string(operation.set) + ", " + what + "\n";
  }

  const Program& program_;
  Member me_;
  const Context& world_ = me_.context;
  std::vector<ProcessSet> sets_ = {kWorld};  ///< by index in Program::sets
  std::map<std::size_t, Open> open_;
  std::map<std::size_t, std::string> texts_;  ///< of mismatches, by operation
  std::string wrong_;
};

/// Collective: starts the ranks with the program's settings, and runs its sets, its steps, and an
/// end of all on each. What those of this process found wrong; empty where everything was as the
/// model says, and every mismatch the same error on all members of its set. Where ranks have
/// devices every other tensor lies there.
std::string run_program(const Program& program) {
  const auto ranks = Ranks::make(program.settings);
  std::vector<std::string> wrong(static_cast<std::size_t>(ranks->count()));
  ranks->on_each([&](int index) {
    std::string& own = wrong[static_cast<std::size_t>(index)];
    Runner runner(program, *ranks, index);
    try {
      own = runner.run();
    } catch (const Error& error) {
      // Logged at once: the runner's destructor may wait for others for ever.
      std::cerr << "rank " << runner.rank() << ", TEST_PROGRAM=" << program.seed << ": "
                << error.what() << std::endl;
      own = error.what();
    }
  });
  std::string all;
  for (const std::string& own : wrong) all += own;
  return all + ranks->complaints();
}

TEST(Differential, ProgramsDoWhatTheModelSays) {
  const auto [rank, ranks] = Ranks::place();
  const auto only = number_in("TEST_PROGRAM");
  const std::uint64_t count = only ? 1 : number_in("TEST_PROGRAMS").value_or(60);
  auto seeds = generator();
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t seed = only.value_or(seeds());
    const std::string again = "TEST_PROGRAM=" + std::to_string(seed);
    if (rank == 0) {  // before it runs, for one that never ends
      std::printf("Program %llu: %s\n", static_cast<unsigned long long>(i), again.c_str());
      std::fflush(stdout);
    }
    const Program program = draw_program(seed, ranks);
    const std::string wrong = run_program(program);
    EXPECT_EQ(wrong, "") << "Repeat with " << again;
  }
}

TEST(Differential, ProgramsDisputeEverythingAndRanksGoInOrdersOfTheirOwn) {
  std::set<std::pair<Kind, Oddness>> disputes;
  bool have_orders = false;
  auto seeds = generator();
  for (int i = 0; i < 200; ++i) {
    const Program program = draw_program(seeds(), 4);
    have_orders |= schedule(program, 0) != schedule(program, 1);
    for (const Operation& o : program.operations) {
      if (o.is_disputed()) disputes.emplace(o.kind, o.oddness);
    }
  }
  EXPECT_EQ(disputes.size(), 12U);  // 2 of all but the barrier, and reductions that differ
  EXPECT_TRUE(have_orders);
}

TEST(Differential, EveryOperationOfEveryTypeAndShapeDoesWhatTheModelSays) {
  for (const DataType type : kAllTypes) {
    EXPECT_EQ(run_program(every_operation(type, Ranks::place().second)), "") << name_of(type);
  }
}

}  // namespace
}  // namespace hora::internal::test
