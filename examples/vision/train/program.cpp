#include "examples/vision/train/program.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <hora/phase.h>
#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "examples/vision/train/optimizers.h"
#include "examples/vision/train/training_state.h"

namespace vision {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, const fs::path& path) {
  throw std::system_error(errno, std::generic_category(), what + " " + path.string());
}

void check_folder(const fs::path& folder) {
  if (access(folder.c_str(), W_OK | X_OK) != 0) fail("Cannot write to folder", folder);
}

/// Before the work: where write_file() could not succeed.
void check_writable(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) {
    throw std::runtime_error("Cannot write " + path.string() + ": there is no folder " +
                             folder.string() + "; make it first");
  }
  check_folder(folder);
  if (fs::exists(path) && !fs::is_regular_file(path)) {
    throw std::runtime_error("Cannot write " + path.string() + ": it is not a regular file");
  }
}

/// More threads than cores make every step slower. The user's OMP_NUM_THREADS holds.
void share_cores(const hora::Context& world) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const bool virtual_nodes = world.settings().ranks_per_node > 0;
  const int ranks_here = virtual_nodes ? world.size() : world.local_size();
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / ranks_here));
}

torch::Device choose_device(const hora::Context& world, const TrainingOptions& options) {
  const Mode mode = options.distribution.mode;
  if (mode != Mode::distributed && world.size() > 1) {
    throw std::runtime_error(fmt::format(
        "--mode {} trains in one process, and this job has {} ranks; start the program by itself, "
        "without horarun or mpirun, or take --mode distributed",
        mode == Mode::single ? "single" : "data-parallel", world.size()));
  }
  const torch::Device own = hora::local_device(world);
  if (options.device == DeviceChoice::cuda && !own.is_cuda()) {
    throw std::runtime_error(
        "--device cuda: this job has no GPU on every rank, or hora was built without CUDA "
        "(preset cuda)");
  }
  if (mode == Mode::data_parallel && options.device == DeviceChoice::cpu) {
    throw std::runtime_error("--mode data-parallel needs GPUs, and --device is cpu");
  }
  if (mode == Mode::data_parallel) return all_gpus().front();
  return options.device == DeviceChoice::cpu ? torch::kCPU : own;
}

/// With 3 / steps an epoch, however short, leaves a twentieth of the old running statistics.
void set_momentum(torch::nn::Module& model, std::size_t steps_an_epoch) {
  const double momentum = std::clamp(3.0 / static_cast<double>(steps_an_epoch), 0.1, 1.0);
  for (const auto& module : model.modules()) {
    if (auto* norm = module->as<torch::nn::BatchNorm2d>()) norm->options.momentum(momentum);
    if (auto* norm = module->as<hora::SyncBatchNorm>()) norm->options.momentum(momentum);
  }
}

/// Gives the weights of another number of classes the model's own last layer, and says so.
void keep_last_layer(const Classifier& model, const std::string& path,
                     torch::OrderedDict<std::string, torch::Tensor>& weights) {
  const auto own = model.named_parameters().pairs();
  for (auto last = own.end() - 2; last != own.end(); ++last) {
    torch::Tensor* const given = weights.find(last->first);
    if (given == nullptr || given->dim() != last->second.dim() ||
        given->size(0) == last->second.size(0)) {
      return;
    }
    if (last + 1 == own.end()) {
      std::cout << fmt::format(
                       "weights: {}, but for the last layer, which begins anew: {} classes "
                       "there, {} here\n",
                       path, given->size(0), last->second.size(0))
                << std::flush;
    }
    *given = last->second;
  }
}

/// Images of a rank in one backward pass: fewer where there are too few for a step of all ranks.
std::size_t choose_batch(const hora::Context& world, const TrainingOptions& options,
                         std::size_t images) {
  const int accumulate = options.distribution.accumulate;
  const auto passes = static_cast<std::size_t>(world.size() * accumulate);
  if (images / passes < 2) {
    throw std::invalid_argument(fmt::format(
        "{} training images in batches of {} for {} ranks with --accumulate {}; expected at least "
        "2 images for each rank and backward pass, which BatchNorm needs",
        images, options.data.batch, world.size(), accumulate));
  }
  return std::min(static_cast<std::size_t>(options.data.batch), images / passes);
}

DataSets open(const Program& program, const std::string& path) {
  try {
    return open_data(path);
  } catch (const NoData& error) {
    const std::string& source = program.source;
    throw std::runtime_error(source.empty() ? error.what() : error.what() + ("; " + source));
  }
}

/// Rank 0's files, and the folder of those that save.
void check_outputs(const hora::Context& world, const TrainingOptions& options) {
  if (world.rank() == 0) {
    for (const std::string& path : {options.output.report, options.output.save}) {
      if (!path.empty()) check_writable(path);
    }
  }
  if (options.validation.only) return;
  const CheckpointOptions& checkpoint = options.checkpoint;
  check_unused(checkpoint);
  const bool saves = (checkpoint.per_node ? world.local_rank() : world.rank()) == 0;
  if (!saves || checkpoint.folder.empty()) return;
  std::error_code error;
  fs::create_directories(checkpoint.folder, error);
  if (error) throw std::system_error(error, "Cannot make folder " + checkpoint.folder);
  check_folder(checkpoint.folder);
}

Setup prepare(const hora::Context& world, const Program& program, const TrainingOptions& options) {
  check_outputs(world, options);
  const torch::Device device = choose_device(world, options);
  const Precision precision(device, options.precision);
  DataSets data = open(program, options.data.path);
  keep_first(data, options.data.limit);
  Transforms transforms = program.transforms(data.kind);
  transforms.training.layout = transforms.validation.layout =
      options.network.channels_last ? Layout::channels_last : Layout::channels_first;
  const std::size_t batch = choose_batch(world, options, data.training->size());
  hora::DistributedSampler sampler(
      data.training->size(),
      {.rank = world.rank(),
       .size = world.size(),
       .seed = options.seed,
       .batch = batch * static_cast<std::size_t>(options.distribution.accumulate)});
  std::shared_ptr<Classifier> model =
      make_classifier(world, options, device, data.training->classes().size(), sampler.steps());
  return {std::move(data),
          transforms,
          std::move(sampler),
          batch,
          device,
          precision,
          std::move(model),
          TrainingLog(world.rank() == 0 ? options.output.logs : LogTargets{})};
}

/// Collective. Ranks with other numbers of images would make other numbers of steps.
void check_equal_data(const hora::Context& world, const DataSets& data) {
  const auto training = static_cast<std::int64_t>(data.training->size());
  const auto validation = static_cast<std::int64_t>(data.validation->size());
  std::array largest{training, validation, -training, -validation};
  hora::allreduce(world, hora::view(largest.data(), largest.size()),
                  {.name = "images", .op = hora::ReduceOp::max});
  if (largest[0] == -largest[2] && largest[1] == -largest[3]) return;
  throw std::runtime_error(fmt::format(
      "ranks have found different data: {} to {} training images, {} to {} for validation; put the "
      "same files on every host",
      -largest[2], largest[0], -largest[3], largest[1]));
}

/// "resnet18 with the CIFAR stem, 11173962 values".
std::string describe(const Classifier& model) {
  std::int64_t values = 0;
  for (const auto& parameter : model.parameters()) values += parameter.numel();
  const std::optional<Stem>& stem = model.options().stem;
  const std::int64_t width = model.options().base_width;
  return fmt::format("{}{}{}, {} values", model.architecture().name,
                     width > 0 ? fmt::format(" of width {}", width) : "",
                     !stem                  ? ""
                     : *stem == Stem::cifar ? " with the CIFAR stem"
                                            : " with torchvision's stem",
                     values);
}

std::string ranks_line(const hora::Context& world) {
  std::string nodes;
  for (int node = 0; node < world.cross_size(); ++node) {
    nodes += (node == 0 ? "" : " + ") + std::to_string(world.ranks_of_node(node).size());
  }
  return fmt::format("ranks: {} on {} node{} ({}), {} thread{} each", world.size(),
                     world.cross_size(), world.cross_size() == 1 ? "" : "s", nodes,
                     at::get_num_threads(), at::get_num_threads() == 1 ? "" : "s");
}

std::string device_line(const TrainingOptions& options, const Setup& setup) {
  std::string devices = setup.device.str();
  if (options.distribution.mode == Mode::data_parallel) {
    devices += fmt::format(" and {} more (data-parallel)", all_gpus().size() - 1);
  }
  return fmt::format("device: {}, {}{}", devices, setup.precision.describe(),
                     options.network.channels_last ? ", channels last" : "");
}

std::string optimizer_line(const TrainingOptions& options) {
  const DistributionOptions& distribution = options.distribution;
  const RegularisationOptions& regularisation = options.regularisation;
  constexpr std::array compressions{"", ", as float16", ", as bfloat16", ", the largest alone",
                                    ", by PowerSGD"};
  std::string text =
      fmt::format("optimizer: {}, gradients averaged{}", options.optimizer.name,
                  compressions.at(static_cast<std::size_t>(distribution.compression)));
  if (distribution.accumulate > 1) {
    text += fmt::format(", {} backward passes a step", distribution.accumulate);
  }
  if (distribution.zero) text += ", optimizer's state in shares (ZeRO)";
  if (distribution.fused_update) text += ", updated by the pass that averages";
  if (distribution.sync_batch_norm) text += ", BatchNorm over all ranks";
  if (regularisation.clip_norm > 0) {
    text += fmt::format(", clipped to {:g}", regularisation.clip_norm);
  }
  if (regularisation.label_smoothing > 0) {
    text += fmt::format(", labels smoothed by {:g}", regularisation.label_smoothing);
  }
  return text;
}

std::string batch_line(const hora::Context& world, const TrainingOptions& options,
                       const Setup& setup) {
  const std::size_t a_rank = setup.sampler.options().batch;
  const int accumulate = options.distribution.accumulate;
  const std::string cut =
      setup.batch < static_cast<std::size_t>(options.data.batch)
          ? fmt::format(" (--batch {} is more than the images are enough for)", options.data.batch)
          : "";
  return fmt::format("batch: {}{} a rank{}, {} in all; {} epochs of {} steps; seed {}",
                     accumulate > 1 ? fmt::format("{} x ", accumulate) : "", setup.batch, cut,
                     a_rank * static_cast<std::size_t>(world.size()), options.epochs,
                     setup.sampler.steps(), options.seed);
}

}  // namespace

std::vector<std::string> describe(const hora::Context& world, const TrainingOptions& options,
                                  const Setup& setup) {
  const DataSets& data = setup.data;
  return {
      fmt::format("data: {}, {} training and {} validation images from {}", data.training->title(),
                  data.training->size(), data.validation->size(), options.data.path),
      "model: " + describe(*setup.model),
      ranks_line(world),
      device_line(options, setup),
      optimizer_line(options),
      batch_line(world, options, setup)};
}

std::shared_ptr<Classifier> make_classifier(const hora::Context& world,
                                            const TrainingOptions& options,
                                            const torch::Device& device, std::size_t classes,
                                            std::size_t steps_an_epoch) {
  torch::manual_seed(options.seed);
  ModelOptions shape{.classes = static_cast<std::int64_t>(classes),
                     .stem = options.network.stem,
                     .base_width = options.network.width,
                     .zero_init_residual = options.network.zero_init_residual,
                     .channels_last = options.network.channels_last};
  if (options.distribution.sync_batch_norm) {
    shape.batch_norm = [&world](std::int64_t channels) {
      return torch::nn::AnyModule(
          hora::SyncBatchNorm(world, torch::nn::BatchNormOptions(channels)));
    };
  }
  std::shared_ptr<Classifier> model = make_model(options.network.architecture, shape);
  if (const std::string& path = options.network.weights; !path.empty() && world.rank() == 0) {
    auto weights = hora::load_safetensors(path);
    if (!options.validation.only) keep_last_layer(*model, path, weights);
    hora::load_weights(*model, weights);
  }
  set_momentum(*model, steps_an_epoch);
  model->to(device);
  return model;
}

void write_file(const fs::path& path, std::string_view bytes) {
  fs::path draft = path;
  draft += "." + std::to_string(getpid()) + ".part";
  try {
    std::ofstream file(draft, std::ios::binary);
    if (!file) fail("Cannot open", draft);
    file << bytes;
    file.close();
    if (!file) fail("Cannot write to", draft);
    fs::rename(draft, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(draft, ignored);
    throw;
  }
}

namespace {

/// Where it fails on any rank, the lowest of those says why, and there is nothing on all ranks.
std::optional<Setup> prepare_everywhere(const hora::Context& world, const Program& program,
                                        const TrainingOptions& options) {
  share_cores(world);
  // cuDNN's algorithms: the same bits in every run, or the fastest ones, found out by trying.
  at::globalContext().setDeterministicCuDNN(options.deterministic);
  at::globalContext().setBenchmarkCuDNN(!options.deterministic);
  std::optional<Setup> setup;
  std::string message;
  try {
    setup.emplace(prepare(world, program, options));
  } catch (const std::exception& error) {
    message = error.what();
  }
  std::vector<std::int64_t> failed(static_cast<std::size_t>(world.size()), 0);
  failed[static_cast<std::size_t>(world.rank())] = message.empty() ? 0 : 1;
  hora::allreduce(world, hora::view(failed.data(), world.size()),
                  {.name = "set-up", .op = hora::ReduceOp::sum});
  const auto first = std::find(failed.begin(), failed.end(), 1);
  if (first - failed.begin() == world.rank()) {
    std::cerr << program.name << ", rank " << world.rank() << ": " << hora::printable(message)
              << std::endl;
  }
  if (first != failed.end()) return std::nullopt;
  check_equal_data(world, setup->data);
  hora::broadcast_parameters(world, *setup->model, /*root=*/0);
  return setup;
}

std::string to_json(const Report& report) {
  nlohmann::ordered_json json{
      {"best_accuracy", report.best_accuracy},
      {"images_per_second", report.images_per_second},
      {"hidden_share", report.hidden_share},
      {"ranks", report.ranks},
      {"nodes", report.nodes},
      {"data", report.data},
      {"epochs", report.epochs},
  };
  if (report.seconds_to_accuracy) json["seconds_to_accuracy"] = *report.seconds_to_accuracy;
  return json.dump(2) + "\n";
}

int run(const hora::Context& world, const Program& program, const ParsedOptions& parsed,
        StopRequest& stop) {
  if (!parsed.options.has_value()) {
    if (world.rank() == 0) std::cerr << parsed.text;
    return parsed.exit_code;
  }
  const TrainingOptions& options = *parsed.options;
  std::optional<Setup> setup = prepare_everywhere(world, program, options);
  if (!setup.has_value()) return 1;
  Progress progress(world.rank() == 0 ? &std::cout : nullptr,
                    {.style = choose_style(options.output.progress, STDOUT_FILENO),
                     .every = options.output.print_freq,
                     .columns = [] { return terminal_columns(STDOUT_FILENO); }});
  const Report report = train(world, options, *setup, progress, stop);
  if (report.stopped) return stopped_exit_code;
  if (world.rank() == 0 && !options.output.report.empty()) {
    write_file(options.output.report, to_json(report));
    progress.line("wrote the results to " + hora::printable(options.output.report));
  }
  return 0;
}

}  // namespace

int run_program(const Program& program, int argc, char** argv) {
  ParsedOptions parsed = parse_options(program, argc, argv);
  if (parsed.options && hora::generation() > 1) {  // a job of `horarun --elastic` goes on
    if (parsed.options->checkpoint.resume.empty()) parsed.options->checkpoint.resume = "auto";
    parsed.options->output.logs.append = true;
  }
  if (!parsed.options.has_value() && parsed.exit_code == 0) {
    std::cout << parsed.text;
    return 0;
  }
  try {
    hora::Context world = hora::init(argc, argv);
    StopRequest stop(world);
    int exit_code = 1;
    try {
      exit_code = run(world, program, parsed, stop);
    } catch (const CommonError& error) {
      if (world.rank() == 0) {
        std::cerr << program.name << ": " << hora::printable(error.what()) << std::endl;
      }
    }
    stop.finish();
    world.shutdown();
    return exit_code;
  } catch (const std::exception& error) {
    // In one piece, for ranks may fail at the same time.
    std::cerr << program.name + ": " + hora::printable(error.what()) + "\n";
    return 1;
  }
}

}  // namespace vision
