#include "examples/vision/train/steps.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

namespace vision {
namespace {

/// Gives a GPU page-locked memory, from which copies are fastest.
LoaderOptions with_memory_for(const torch::Device& device, LoaderOptions options) {
  if (!device.is_cuda()) return options;
  options.allocator = [](std::size_t bytes) {
    auto memory = std::make_shared<torch::Tensor>(
        torch::empty({static_cast<std::int64_t>(bytes)},
                     torch::TensorOptions().dtype(torch::kUInt8).pinned_memory(true)));
    auto* begin = reinterpret_cast<std::byte*>(memory->data_ptr<std::uint8_t>());
    return std::shared_ptr<std::byte>(std::move(memory), begin);
  };
  return options;
}

/// The batch in its own memory, which lives as long as a tensor uses it.
TensorBatch wrap(const std::shared_ptr<BatchData>& batch, ImageSize size, Layout layout) {
  const auto keep = [batch](void*) {};
  const bool last = layout == Layout::channels_last;
  const auto samples = static_cast<std::int64_t>(batch->size());
  constexpr auto channels = static_cast<std::int64_t>(image_channels);
  const std::array shape =
      last ? std::array<std::int64_t, 4>{samples, size.height, size.width, channels}
           : std::array<std::int64_t, 4>{samples, channels, size.height, size.width};
  const torch::Tensor images =
      torch::from_blob(batch->images().data(), shape, keep, torch::kFloat32);
  return {last ? images.permute({0, 3, 1, 2}) : images,
          torch::from_blob(batch->labels().data(), {samples}, keep, torch::kInt64),
          batch->replaced()};
}

/// The batch without samples that hold another image than their own.
TensorBatch without_replaced(const TensorBatch& batch) {
  if (batch.replaced.empty()) return batch;
  torch::Tensor own = torch::ones(batch.labels.size(0), torch::kBool);
  for (const std::size_t sample : batch.replaced) own[static_cast<std::int64_t>(sample)] = false;
  const torch::Tensor indices = own.nonzero().squeeze(1).to(batch.labels.device());
  return {batch.images.index_select(0, indices), batch.labels.index_select(0, indices)};
}

}  // namespace

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Batches::Batches(const Dataset& data, const TransformOptions& transform, LoaderOptions loader,
                 const torch::Device& device)
    : layout_(transform.layout),
      device_(device),
      loader_(data, transform, with_memory_for(device, std::move(loader))) {}

void Batches::start(std::uint64_t epoch, std::vector<std::size_t> samples, std::size_t first) {
  loader_.start(epoch, std::move(samples), first);
}

std::optional<TensorBatch> Batches::next() {
  copies_.release();
  const std::shared_ptr<BatchData> batch = loader_.next();
  if (!batch) return std::nullopt;
  TensorBatch tensors = wrap(batch, loader_.image_size(), layout_);
  if (device_.is_cpu()) return tensors;
  try {
    tensors.images = tensors.images.to(device_, /*non_blocking=*/true);
    tensors.labels = tensors.labels.to(device_, /*non_blocking=*/true);
    const auto event = std::make_shared<c10::Event>(device_.type());
    event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    copies_.keep(batch, [event] { return event->query(); });
    return tensors;
  } catch (...) {
    CopiedBatches::abandon(batch);  // the first of the copies may be under way
    throw;
  }
}

StepResult train_step(const TrainingOptions& options, const Forward& forward, Batches& batches,
                      hora::DistributedOptimizer& optimizer, hora::GradScaler& scaler,
                      hora::FiniteCheck& finite) {
  StepResult result;
  // Sums over the step's batches, on the device: of their mean losses; of top-1 and top-5.
  torch::Tensor losses;
  torch::Tensor correct;
  std::int64_t images = 0;
  const int passes = options.distribution.accumulate;
  const auto waited_before = optimizer.statistics().waited;
  optimizer.zero_grad();
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    const std::optional<TensorBatch> batch = batches.next();
    if (!batch) throw std::logic_error("train_step: the epoch has no batch left");
    result.data_seconds += seconds_since(start);
    const torch::Tensor logits = forward(batch->images);
    const torch::Tensor loss = torch::nn::functional::cross_entropy(
        logits, batch->labels,
        torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(
            options.regularisation.label_smoothing));
    // Before backward, so that the logits need not be kept for it.
    const torch::Tensor right = hora::topk_correct(logits.detach(), batch->labels);
    losses = pass == 0 ? loss.detach() : losses + loss.detach();
    correct = pass == 0 ? right : correct + right;
    images += batch->labels.size(0);
    scaler.scale(passes == 1 ? loss : loss / passes).backward();
  }
  result.non_finite = finite.check(losses);
  if (result.non_finite) {
    optimizer.zero_grad();
    result.made = false;
  } else {
    if (options.regularisation.clip_norm > 0) {
      scaler.unscale_();
      optimizer.clip_grad_norm_(options.regularisation.clip_norm);
    }
    result.made = scaler.step();
    scaler.update();
  }
  result.loss_scale = scaler.current_scale();

  const std::chrono::duration<double> exposed = optimizer.statistics().waited - waited_before;
  result.exposed_seconds = exposed.count();
  correct = correct.cpu();
  const double percent = 100 / static_cast<double>(images);
  result.loss = losses.item<double>() / passes;
  result.top1 = percent * correct[0].item<double>();
  result.top5 = percent * correct[1].item<double>();
  return result;
}

Validation::Validation(const hora::Context& world, const Dataset& data,
                       const TransformOptions& transform, const LoaderOptions& loader,
                       const torch::Device& device, torch::nn::Module& model, Forward forward)
    : world_(world),
      sampler_(data.size(), {.rank = world.rank(),
                             .size = world.size(),
                             .shuffle = false,
                             .batch = loader.batch,
                             .remainder = hora::Remainder::keep}),
      batches_(data, transform, loader, device),
      model_(model),
      forward_(std::move(forward)) {}

ValidationResult Validation::run(StopRequest& stop) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  hora::broadcast_buffers(world_, model_, /*root=*/0);
  model_.eval();
  // Seen, counted, top-1, top-5: integers, so that the sums are exact and can be checked.
  std::array<std::int64_t, 4> counts{};
  batches_.start(/*epoch=*/0, sampler_.local_order());
  for (std::size_t step = 0; step < sampler_.steps(); ++step) {
    // Ranks that have no sample left in the last step poll as well.
    if (const std::optional<TensorBatch> batch = batches_.next()) {
      const TensorBatch own = without_replaced(*batch);
      counts[0] += batch->labels.size(0);
      counts[1] += own.labels.size(0);
      if (own.labels.size(0) > 0) {
        const torch::Tensor correct = hora::topk_correct(forward_(own.images), own.labels).cpu();
        counts[2] += correct[0].item<std::int64_t>();
        counts[3] += correct[1].item<std::int64_t>();
      }
    }
    if (stop.poll()) return {.stopped = true};
  }
  hora::allreduce(world_, hora::view(counts.data(), std::int64_t{counts.size()}),
                  {.name = "validation counts", .op = hora::ReduceOp::sum});
  if (counts[0] != static_cast<std::int64_t>(sampler_.samples())) {
    throw std::logic_error(
        fmt::format("Validation saw {} images of {}", counts[0], sampler_.samples()));
  }
  const auto percent = [&](std::int64_t part) {
    return counts[1] == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(counts[1]);
  };
  return {.images = counts[1],
          .top1_correct = counts[2],
          .top1 = percent(counts[2]),
          .top5 = percent(counts[3]),
          .seconds = seconds_since(start)};
}

}  // namespace vision
