#include "examples/vision/train/validation.h"

#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <array>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>

namespace vision {
namespace {

double percent_of(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// The batch without samples that hold another image than their own.
TensorBatch without_replaced(const DeviceBatch& batch) {
  if (batch.replaced.empty()) return batch.tensors;
  torch::Tensor own = torch::ones(batch.tensors.labels.size(0), torch::kBool);
  for (const std::size_t sample : batch.replaced) own[static_cast<std::int64_t>(sample)] = false;
  const torch::Tensor indices = own.nonzero().squeeze(1).to(batch.tensors.labels.device());
  return {batch.tensors.images.index_select(0, indices),
          batch.tensors.labels.index_select(0, indices)};
}

}  // namespace

double ValidationResult::top1() const {
  return percent_of(top1_correct, images);
}
double ValidationResult::top5() const {
  return percent_of(top5_correct, images);
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

ValidationResult Validation::run(StopRequest* stop) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_grad;
  hora::broadcast_buffers(world_, model_, /*root=*/0);
  model_.eval();
  ValidationResult result = count(stop);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

// The counts are integers, so that the sums are exact and can be checked.
ValidationResult Validation::count(StopRequest* stop) {
  std::array<std::int64_t, 4> counts{};  // seen, counted, top-1, top-5
  batches_.start(/*epoch=*/0, sampler_.local_order());
  for (std::size_t step = 0; step < sampler_.steps(); ++step) {
    // Ranks that have no sample left in the last step poll as well.
    if (const std::optional<DeviceBatch> batch = batches_.next()) {
      const TensorBatch own = without_replaced(*batch);
      counts[0] += batch->tensors.labels.size(0);
      counts[1] += own.labels.size(0);
      if (own.labels.size(0) > 0) {
        const torch::Tensor correct = hora::topk_correct(forward_(own.images), own.labels).cpu();
        counts[2] += correct[0].item<std::int64_t>();
        counts[3] += correct[1].item<std::int64_t>();
      }
    }
    if (stop != nullptr && stop->poll()) return {.stopped = true};
  }
  hora::allreduce(world_, hora::view(counts.data(), std::int64_t{counts.size()}),
                  {.name = "validation counts", .op = hora::ReduceOp::sum});
  if (counts[0] != static_cast<std::int64_t>(sampler_.samples())) {
    throw std::logic_error(
        fmt::format("Validation saw {} images of {}", counts[0], sampler_.samples()));
  }
  return {.images = counts[1], .top1_correct = counts[2], .top5_correct = counts[3]};
}

}  // namespace vision
