/// Trains a network on CIFAR-10: horarun -np 4 cifar10 --data FOLDER
#include <ATen/Parallel.h>
#include <hora/hora.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "examples/cifar10/arguments.h"
#include "examples/cifar10/model.h"
#include "examples/cifar10/output_file.h"
#include "examples/cifar10/trainer.h"

namespace {

struct Setup {
  cifar10::Data data;
  hora::DistributedSampler sampler;
  vision::TrainingLog log;  ///< of rank 0; the others write nothing
};

// Batches are smaller where the images are too few for one of all ranks.
hora::DistributedSampler training_sampler(const hora::Context& world,
                                          const cifar10::Arguments& arguments, std::size_t images) {
  const std::size_t share = images / static_cast<std::size_t>(world.size());
  if (share < 2) {
    throw std::invalid_argument(std::to_string(images) + " training images in batches of " +
                                std::to_string(arguments.batch) + " for " +
                                std::to_string(world.size()) +
                                " ranks; expected at least 2 images for each rank, which "
                                "BatchNorm needs");
  }
  return hora::DistributedSampler(
      images, {.rank = world.rank(),
               .size = world.size(),
               .seed = arguments.seed,
               .batch = std::min(static_cast<std::size_t>(arguments.batch), share)});
}

Setup prepare(const hora::Context& world, const cifar10::Arguments& arguments) {
  if (world.rank() == 0) {
    for (const std::string& path : {arguments.report, arguments.save}) {
      if (!path.empty()) {
        cifar10::check_writable(path);
      }
    }
  }
  cifar10::choose_device(world, arguments);
  cifar10::Data data = cifar10::load_data(arguments.data, arguments.limit);
  hora::DistributedSampler sampler = training_sampler(world, arguments, data.sets.training->size());
  return {std::move(data), std::move(sampler),
          vision::TrainingLog(world.rank() == 0 ? arguments.logs : vision::LogTargets{})};
}

// Collective. Ranks with other numbers of images would make other numbers of steps.
void check_equal_data(const hora::Context& world, const cifar10::Data& data) {
  const auto training = static_cast<std::int64_t>(data.sets.training->size());
  const auto validation = static_cast<std::int64_t>(data.sets.validation->size());
  std::array largest{training, validation, -training, -validation};
  hora::allreduce(world, hora::view(largest.data(), largest.size()),
                  {.name = "images", .op = hora::ReduceOp::max});
  if (largest[0] != -largest[2] || largest[1] != -largest[3]) {
    throw std::runtime_error("ranks have found different data: " + std::to_string(-largest[2]) +
                             " to " + std::to_string(largest[0]) + " training images, " +
                             std::to_string(-largest[3]) + " to " + std::to_string(largest[1]) +
                             " for validation; put the same files on every host");
  }
}

// Collective. Nothing where any rank failed; the lowest of those says why, so that a file missing
// everywhere is reported once, and one missing on a single host is reported too.
std::optional<Setup> prepare_everywhere(const hora::Context& world,
                                        const cifar10::Arguments& arguments) {
  std::optional<Setup> setup;
  std::string message;
  try {
    setup.emplace(prepare(world, arguments));
  } catch (const std::exception& error) {
    message = error.what();
  }
  std::vector<std::int64_t> failed(static_cast<std::size_t>(world.size()), 0);
  failed[static_cast<std::size_t>(world.rank())] = message.empty() ? 0 : 1;
  hora::allreduce(world, hora::view(failed.data(), world.size()),
                  {.name = "set-up", .op = hora::ReduceOp::sum});
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first == failed.end()) {
    check_equal_data(world, setup->data);
    return setup;
  }
  if (first - failed.begin() == world.rank()) {
    std::cerr << "cifar10, rank " << world.rank() << ": " << hora::printable(message) << std::endl;
  }
  return std::nullopt;
}

// Ranks beside each other share the cores; more threads than cores make every step slower.
void share_cores(const hora::Context& world) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) {
    return;
  }
  const bool virtual_nodes = world.settings().ranks_per_node > 0;
  const int ranks_here = virtual_nodes ? world.size() : world.local_size();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / ranks_here));
}

int run(const hora::Context& world, const cifar10::ParsedArguments& parsed) {
  if (!parsed.arguments.has_value()) {
    if (world.rank() == 0) {
      std::cerr << parsed.text;
    }
    return parsed.exit_code;
  }
  const cifar10::Arguments& arguments = *parsed.arguments;
  share_cores(world);
  std::optional<Setup> setup = prepare_everywhere(world, arguments);
  if (!setup.has_value()) {
    return 1;
  }
  vision::Progress progress(world.rank() == 0 ? &std::cout : nullptr,
                            {.style = vision::choose_style(arguments.progress, STDOUT_FILENO),
                             .columns = [] { return vision::terminal_columns(STDOUT_FILENO); }});
  const cifar10::Report report =
      cifar10::train(world, arguments, setup->data, setup->sampler, progress, setup->log);
  if (world.rank() == 0 && !arguments.report.empty()) {
    cifar10::write_file(arguments.report, cifar10::to_json(report));
    progress.line("wrote the results to " + hora::printable(arguments.report));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const cifar10::ParsedArguments parsed = cifar10::parse_arguments(argc, argv);
  if (!parsed.arguments.has_value() && parsed.exit_code == 0) {
    std::cout << parsed.text;
    return 0;
  }
  try {
    const hora::Context world = hora::init(argc, argv);
    return run(world, parsed);
  } catch (const std::exception& error) {
    std::cerr << "cifar10: " << hora::printable(error.what()) << std::endl;
    return 1;
  }
}
