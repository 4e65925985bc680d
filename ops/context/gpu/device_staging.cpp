#include "ops/context/gpu/device_staging.h"

#include <algorithm>

#include "core/base/log.h"
#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

constexpr const char* kStraight = "between nodes, GPU memory goes straight into MPI";
constexpr const char* kPinned = "between nodes, GPU memory goes through pinned host memory";

/// "MPI on rank 3 says that it takes no GPU memory".
std::string objection(std::span<const CudaSupport> by_rank) {
  const auto doubt = std::ranges::find_if(
      by_rank, [](CudaSupport support) { return support != CudaSupport::yes; });
  return "MPI on rank " + std::to_string(doubt - by_rank.begin()) +
         (*doubt == CudaSupport::no ? " says that it takes no GPU memory"
                                    : " cannot be asked whether it takes GPU memory");
}

}  // namespace

DeviceStagingChoice choose_device_staging(CudaAwareMpi setting,
                                          std::span<const CudaSupport> by_rank, int nodes) {
  if (setting == CudaAwareMpi::off) {
    return {.reason = std::string(kPinned) + ": HORA_CUDA_AWARE_MPI=off"};
  }
  constexpr auto kMostNodes = static_cast<int>(DeviceReduction::kMaximumInputs);
  if (nodes > kMostNodes) {
    return {.reason = std::string(kPinned) + ": there are more than " + std::to_string(kMostNodes) +
                      " nodes, which the GPU's sum does not take"};
  }
  const bool all =
      std::ranges::all_of(by_rank, [](CudaSupport support) { return support == CudaSupport::yes; });
  if (all) {
    return {.on_device = true,
            .reason = std::string(kStraight) + ", which says on every rank that it takes it"};
  }
  if (setting == CudaAwareMpi::on) {
    return {.on_device = true,
            .doubtful = true,
            .reason = std::string(kStraight) + ", as HORA_CUDA_AWARE_MPI=on has it, though " +
                      objection(by_rank) +
                      ": if the job crashes in MPI, that is why; then set it to auto"};
  }
  return {.reason = std::string(kPinned) + ": " + objection(by_rank) +
                    " (HORA_CUDA_AWARE_MPI=on overrides that)"};
}

bool agree_on_device_staging(Bootstrap& world, CudaSupport own, const Settings& settings,
                             int nodes) {
  if (nodes == 1) return false;
  std::vector<CudaSupport> by_rank;
  for (const auto& bytes : world.all_gather(std::as_bytes(std::span(&own, 1)))) {
    by_rank.push_back(static_cast<CudaSupport>(bytes.front()));
  }
  const auto choice = choose_device_staging(settings.cuda_aware_mpi, by_rank, nodes);
  if (world.rank() == 0) {
    log().log(choice.doubtful ? spdlog::level::warn : spdlog::level::info, choice.reason);
  }
  return choice.on_device;
}

}  // namespace hora::internal
