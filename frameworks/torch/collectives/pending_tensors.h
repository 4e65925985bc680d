/// Collectives under way on the tensors of one call: what its handle waits for.
#pragma once

#include <c10/util/SmallVector.h>
#include <hora/torch/groups.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace hora::internal {

using Tensors = std::vector<torch::Tensor>;
using Rows = std::vector<std::int64_t>;

/// The tensors of one call. A single one is a group of one that travels under the name itself.
struct CallTensors {
  at::TensorList tensors;
  bool is_group = false;              ///< tensor i travels under "<name>.<i>"
  std::span<const Rows> splits = {};  ///< of an alltoall: by tensor, in place of the options'
};

/// A call's results, by tensor; rows only of operations whose core calls give a Result.
using TensorResults = c10::SmallVector<AlltoallResult, 1>;

/// As the public functions give them: T is torch::Tensor, AlltoallResult, or a vector of either.
template <class T>
T results_as(TensorResults&& results) {
  if constexpr (std::is_same_v<T, torch::Tensor>) {
    return std::move(results[0].tensor);
  } else if constexpr (std::is_same_v<T, AlltoallResult>) {
    return std::move(results[0]);
  } else if constexpr (std::is_same_v<T, Tensors>) {
    Tensors tensors;
    tensors.reserve(results.size());
    for (AlltoallResult& each : results) tensors.push_back(std::move(each.tensor));
    return tensors;
  } else {
    return {std::make_move_iterator(results.begin()), std::make_move_iterator(results.end())};
  }
}

/// Thread rule: as CollectiveHandle. The destructor waits, as Handle's.
class PendingTensors {
 public:
  virtual ~PendingTensors() = default;
  virtual bool ready() const = 0;
  /// As Handle::wait_for(): true where all are done.
  virtual bool wait_for(std::chrono::nanoseconds timeout) const = 0;
  /// Once. Waits for all of them, then throws the first one's error.
  virtual TensorResults wait() = 0;
};

/// Access of hora's own sources to the public handles, whose friend it is.
struct TensorAccess {
  template <class AnyHandle>
  static AnyHandle handle(std::unique_ptr<PendingTensors> pending) {
    return AnyHandle(std::move(pending));
  }
};

enum class Place { in_place, out_of_place };

/// Starts the operation that `options` are of. Throws Error(invalid_argument) before any starts
/// where the tensors are not all dense and on one device. Where one's start throws, those before it
/// have been waited for: every rank throws at the same tensor.
template <class Options>
std::unique_ptr<PendingTensors> start_collective(const Context& context, const CallTensors& call,
                                                 const Options& options,
                                                 Place place = Place::out_of_place);

}  // namespace hora::internal
