/// An exception leaves the scope of what ranks train with while collectives are under way.
/// Arguments: where it is thrown, who catches it; and, if wanted, `in_backward`, with which
/// buckets are updated meanwhile.
///   part     after backward() of some parameters: peers wait for the others
///   step     between backward() and step()
///   closure  by the closure of step(), after its backward()
///   hook     by a parameter's hook, in the midst of backward()
///   loss     by the loss's own backward, when others' gradients are under way
///   handles  while handles of tensors and groups are open
///   all      with goes_on: each of these, one after the other
///
///   leaves   rank 0 throws; main() catches, outside of the context's scope, and returns 3
///   uncaught rank 0 throws
///   goes_on  every rank throws, catches within the context's scope, and trains on
#include <hora/torch.h>
#include <hora/torch/gradient_hook.h>
#include <hora/torch/optim.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace std::chrono_literals;

/// The exception's text.
constexpr const char* kText = "thrown by the application";

/// How the exception is thrown: an Error's text is known while it unwinds the stack.
[[noreturn]] void throw_error() {
  std::fputs("throwing now\n", stderr);
  throw hora::Error(hora::ErrorCode::invalid_argument, kText);
}
[[noreturn]] void throw_other() {
  std::fputs("throwing now\n", stderr);
  throw std::runtime_error(kText);
}

struct ThrowingBackward : torch::autograd::Function<ThrowingBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw_error();
  }
};

/// Parameters of one bucket each, whose gradients are all 1.
struct Model {
  std::vector<torch::Tensor> parameters;
  torch::OrderedDict<std::string, torch::Tensor> named;

  Model() {
    for (int i = 0; i < 4; ++i) {
      parameters.push_back(torch::zeros({64, 32}, torch::requires_grad()));
      named.insert("p" + std::to_string(i), parameters.back());
    }
  }
  torch::Tensor first() const { return parameters[0].sum() + parameters[1].sum(); }
  /// Their gradients come first.
  torch::Tensor others() const { return parameters[2].sum() + parameters[3].sum(); }
  torch::Tensor loss() const { return first() + others(); }
};

/// Where the exception is thrown.
using Way = std::function<void(const Model&, hora::DistributedOptimizer&)>;

const std::map<std::string, Way> kWays{
    {"part",
     [](const Model& model, auto&) {
       model.others().backward();
       throw_other();
     }},
    {"step",
     [](const Model& model, auto&) {
       model.loss().backward();
       throw_error();
     }},
    {"closure",
     [](const Model& model, hora::DistributedOptimizer& optimizer) {
       optimizer.step([&]() -> torch::Tensor {
         optimizer.zero_grad();
         model.loss().backward();
         throw_error();
       });
     }},
    {"hook",
     [](const Model& model, auto&) {
       const auto armed = std::make_shared<bool>(true);
       model.parameters[0].register_hook([armed](const torch::Tensor&) {
         if (std::exchange(*armed, false)) throw_error();
       });
       model.loss().backward();
     }},
    {"loss", [](const Model& model,
                auto&) { (ThrowingBackward::apply(model.first()) + model.others()).backward(); }},
    {"handles", {}},
};

/// Three steps; the second one goes `way`, if there is one.
void train(const hora::Context& world, Model& model, const Way& way,
           hora::DistributedOptimizerOptions options = {}) {
  options.bucket_bytes = 4096;
  if (options.hook) options.hook = std::make_shared<hora::PowerSgd>();  // one optimizer only
  hora::optim::SGD sgd(model.parameters, 1.0);
  hora::DistributedOptimizer optimizer(world, sgd, model.named, options);
  const auto scale = static_cast<double>(world.rank() + 1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    if (step == 1 && way) way(model, optimizer);
    (model.loss() * scale).backward();
    optimizer.step();
  }
}

/// Rank 0 has submitted all of it before any other does, and then throws.
void leave_handles_open(const hora::Context& world, bool throws) {
  const auto ranks = static_cast<std::int64_t>(world.size());
  // In memory of hora's, where peers read and write it.
  torch::Tensor gathered = hora::allgather(world, torch::ones({1000}), {.name = "gathered"});
  torch::Tensor transposed = torch::ones({50, 40}).t();
  const torch::Tensor rows = torch::ones({ranks * 10, 4});
  if (world.rank() != 0) std::this_thread::sleep_for(100ms);
  std::vector<hora::TensorHandle> handles;
  handles.push_back(hora::allreduce_async(world, rows, {.name = "copied"}));
  handles.push_back(hora::allreduce_async_(world, gathered, {.name = "in place"}));
  handles.push_back(hora::allreduce_async_(world, transposed, {.name = "transposed"}));
  handles.push_back(hora::broadcast_async(world, rows, {.name = "broadcast", .root = 0}));
  handles.push_back(hora::allgather_async(world, rows, {.name = "allgather"}));
  handles.push_back(hora::reduce_scatter_async(world, rows, {.name = "reduce_scatter"}));
  hora::AlltoallHandle alltoall = hora::alltoall_async(world, rows, {.name = "alltoall"});
  hora::TensorGroupHandle reduced =
      hora::grouped_allreduce_async(world, {rows, transposed}, {.name = "reduced"});
  hora::TensorGroupHandle all = hora::grouped_allgather_async(world, {rows, rows}, {.name = "all"});
  if (throws) throw_error();
  for (hora::TensorHandle& handle : handles) handle.wait();
  alltoall.wait();
  reduced.wait();
  all.wait();
  hora::allreduce(world, rows, {.name = "after"});
}

/// Calls it, and catches what it throws.
void recover(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    if (std::string(error.what()).find(kText) != std::string::npos) return;
    throw;
  }
  throw std::logic_error("not reached: nothing was thrown");
}

/// The averages are right, and all else that ranks do together.
void expect_progress(const hora::Context& world, Model& model,
                     const hora::DistributedOptimizerOptions& options) {
  const torch::Tensor before = torch::stack(model.parameters).detach().clone();
  train(world, model, {}, options);
  // Adasum's are no averages; the next optimizer compares the ranks' parameters.
  const bool averages = options.op == hora::ReduceOp::average;
  const double average = (world.size() + 1) / 2.0;
  if (averages && !torch::allclose(torch::stack(model.parameters).detach(), before - 3 * average)) {
    throw std::logic_error("the steps after the exception are wrong");
  }
  const torch::Tensor sum =
      hora::allreduce(world, torch::ones({1000}), {.name = "sum", .op = hora::ReduceOp::sum});
  if (!sum.eq(world.size()).all().item<bool>()) throw std::logic_error("the sum is wrong");
}

using Options = hora::DistributedOptimizerOptions;

const Options kInBackward{.sharding = hora::Sharding::in_backward};

/// Ways to average.
const std::vector<Options> kKinds{{},
                                  {.compression = hora::Compression::float16},
                                  {.op = hora::ReduceOp::adasum},
                                  {.static_graph = true},
                                  {.sharding = hora::Sharding::state},
                                  {.hook = std::make_shared<hora::PowerSgd>()},
                                  kInBackward};

void go_on(const hora::Context& world, const std::string& where) {
  Model model;
  for (const Options& options : kKinds) {
    const bool early = options.sharding == hora::Sharding::in_backward;
    if (early && where == "closure") continue;
    recover([&] {
      if (where == "handles") leave_handles_open(world, true);
      // With "part" rank 0 leaves buckets out, which the others' averages then wait for for good.
      const bool is_whole = where == "part" && world.rank() != 0;
      train(world, model, kWays.at(is_whole ? "step" : where), options);
    });
    // Until all have left, peers may still write to the parameters.
    if (early) hora::barrier(world, {.name = "left"});
    expect_progress(world, model, options);
  }
}

int run(const std::string& where, const std::string& who, const Options& options, int& rank) {
  hora::Context world = hora::init();
  rank = world.rank();
  if (who == "goes_on") {
    for (const char* each : {"step", "closure", "hook", "loss", "handles", "part"}) {
      if (where == each || where == "all") go_on(world, each);
    }
    world.shutdown();
    std::fprintf(stderr, "rank %d went on\n", rank);
    return 0;
  }
  Model model;
  if (where == "handles") {
    leave_handles_open(world, rank == 0);
  } else {
    // With "step" the other rank does not average meanwhile: nothing that rank 0 waits for comes.
    const Way elsewhere = [&](const Model&, hora::DistributedOptimizer&) {
      hora::barrier(world, {.name = "elsewhere"});
    };
    const Way of_other = where == "step" ? elsewhere : Way();
    train(world, model, rank == 0 ? kWays.at(where) : of_other, options);
  }
  std::fputs("not reached on either rank\n", stderr);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fputs(
        "usage: abandoned_program part|step|closure|hook|loss|handles|all leaves|uncaught|goes_on "
        "[in_backward]\n",
        stderr);
    return 2;
  }
  const Options options = argc == 4 ? kInBackward : Options{};
  int rank = -1;
  if (std::string(argv[2]) == "uncaught") return run(argv[1], argv[2], options, rank);
  try {
    return run(argv[1], argv[2], options, rank);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d caught: %s\n", rank, error.what());
    std::this_thread::sleep_for(300ms);  // for the other rank to say its own
    return 3;
  }
}
