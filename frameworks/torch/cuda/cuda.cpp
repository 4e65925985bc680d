// With CUDA: buckets, steps and streams of GPUs. Else no_cuda.cpp.
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <nvtx3/nvtx3.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "core/api/internals.h"
#include "frameworks/torch/optim/optim.h"
#include "frameworks/torch/optimizer/bucket.h"
#include "frameworks/torch/tensor_view.h"
#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

/// Copies of gradients of one type.
struct TypedPieces {
  DataType type;
  std::vector<CopyPiece> pieces;
};

/// The list of `type`, made where there is none.
std::vector<CopyPiece>& of_type(std::vector<TypedPieces>& lists, DataType type) {
  const auto found = std::find_if(lists.begin(), lists.end(),
                                  [&](const TypedPieces& list) { return list.type == type; });
  return found != lists.end() ? found->pieces : lists.emplace_back(TypedPieces{type, {}}).pieces;
}

class CudaBucket final : public GradientBucket {
 public:
  CudaBucket(const Context& context, const BucketLayout& layout,
             const std::vector<Parameter>& parameters)
      : GradientBucket(context, layout, parameters) {
    // Padding is summed as well: stale bytes could be NaN.
    all_bytes().zero_();
    for (std::size_t place = 0; place < layout.places.size(); ++place) {
      of_type(places_, type_of(place))
          .push_back({wire(place).data_ptr(), gradient(place).data_ptr(), gradient(place).numel()});
    }
  }

  void pack(const std::string& name) override {
    const nvtx3::scoped_range range("pack " + name);
    const c10::cuda::CUDAGuard device(gradient_memory().device());
    const auto stream = current();
    for (const auto& other : streams_) {
      if (other == stream) continue;
      at::cuda::CUDAEvent event;
      event.record(other);
      event.block(stream);
    }
    const Flag flag{data() + layout().flag_offset, size_of(layout().type)};
    if (passes().pack.checked) clear(flag, stream);
    for (const TypedPieces& list : stored_) {
      copy({list.pieces, list.type, layout().type}, passes().pack, flag, stream);
    }
    // Freed in the order of the stream that has read them: LibTorch reuses memory in that order.
    for (const at::Tensor& source : sources_) keep_for_stream(source, stream.stream());
    for (TypedPieces& list : stored_) list.pieces.clear();
    sources_.clear();
    streams_.clear();
  }

  void unpack(const std::string& name) override {
    const nvtx3::scoped_range range("unpack " + name);
    const c10::cuda::CUDAGuard device(gradient_memory().device());
    const auto stream = current();
    const Flag flag{unpack_flag(), unpack_flag_bytes};
    if (passes().unpack.checked) clear(flag, stream);
    for (const TypedPieces& list : places_) {
      if (list.type == layout().type && passes().unpack.is_plain()) continue;
      copy({list.pieces, layout().type, list.type}, passes().unpack, flag, stream);
    }
    keep_for_stream(gradient_memory(), stream.stream());
  }

 private:
  void put(std::size_t place, const at::Tensor& source) override {
    note_stream();
    const at::Tensor& target = wire(place);
    const void* from = source.defined() ? source.data_ptr() : nullptr;
    const bool stays = source.defined() && from == target.data_ptr();
    if (stays && passes().pack.is_plain()) return;
    of_type(stored_, type_of(place)).push_back({from, target.data_ptr(), target.numel()});
    if (source.defined()) sources_.push_back(source);
  }

  struct Flag {
    std::byte* data;
    std::size_t bytes;
  };

  static void clear(const Flag& flag, const c10::cuda::CUDAStream& stream) {
    cuda_check(cuda_runtime(),
               cuda_runtime().memset_async(flag.data, 0, flag.bytes, stream.stream()),
               "cudaMemsetAsync of a bucket's flag");
  }

  static void copy(BatchedCopy copy, const GradientPass& pass, const Flag& flag,
                   const c10::cuda::CUDAStream& stream) {
    copy.scale = pass.scale;
    if (pass.checked) {
      copy.flag = flag.data;
      copy.limit = pass.limit(copy.target_type);
    }
    cuda_check(cuda_runtime(), cuda_runtime().batched_copy(copy, stream.stream()),
               "the kernel that copies gradients");
  }

  DataType type_of(std::size_t place) const { return layout().places[place].type; }

  /// The current stream of the bucket's device, which need not be the calling thread's current one.
  c10::cuda::CUDAStream current() const {
    return c10::cuda::getCurrentCUDAStream(gradient_memory().device().index());
  }

  /// A bucket's gradients may come from several streams.
  void note_stream() {
    const auto stream = current();
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
      streams_.push_back(stream);
    }
  }

  std::vector<TypedPieces> places_;  ///< from the bucket to what `.grad` views
  std::vector<TypedPieces> stored_;  ///< of this round, into the bucket
  std::vector<at::Tensor> sources_;  ///< what stored_ points to
  std::vector<c10::cuda::CUDAStream> streams_;
};

}  // namespace

std::unique_ptr<GradientBucket> make_cuda_bucket(const Context& context, const BucketLayout& layout,
                                                 const std::vector<Parameter>& parameters) {
  return std::make_unique<CudaBucket>(context, layout, parameters);
}

namespace {

/// One kernel's.
struct EqualUpdates {
  at::Device device;
  DataType type;
  std::variant<SgdStep, AdamStep> step;
  std::vector<UpdatePiece> pieces;
};

class CudaUpdates final : public DeviceUpdates {
 public:
  void add(const ParameterUpdate& update, const at::Tensor& parameter) override {
    UpdatePiece piece{update.memory.parameter,
                      parameter.grad().data_ptr(),
                      {update.memory.state[0], update.memory.state[1], update.memory.state[2]},
                      parameter.numel()};
    // Mostly all are equal: the last group is looked at first.
    const auto found = std::find_if(groups_.rbegin(), groups_.rend(), [&](const auto& group) {
      return group.device == parameter.device() && group.type == update.type &&
             group.step == update.step;
    });
    if (found != groups_.rend()) {
      found->pieces.push_back(piece);
    } else {
      groups_.push_back({parameter.device(), update.type, update.step, {piece}});
    }
  }

  void run() override {
    for (const EqualUpdates& group : groups_) {
      const c10::cuda::CUDAGuard device(group.device);
      const auto stream = c10::cuda::getCurrentCUDAStream(group.device.index());
      cuda_check(
          cuda_runtime(),
          cuda_runtime().batched_update({group.pieces, group.type, group.step}, stream.stream()),
          "the launch of the update kernel");
    }
    groups_.clear();
  }

 private:
  std::vector<EqualUpdates> groups_;
};

}  // namespace

std::unique_ptr<DeviceUpdates> make_device_updates(const at::Device& device) {
  return device.is_cuda() ? std::make_unique<CudaUpdates>() : nullptr;
}

void* current_stream(const at::Device& device) {
  return device.is_cuda() ? c10::cuda::getCurrentCUDAStream(device.index()).stream() : nullptr;
}

void share_device_memory(const Context& context) {
  Access::set_device_cache_release(context, [] {
    try {
      c10::cuda::CUDACachingAllocator::emptyCache();
    } catch (const std::exception&) {
      // As during a capture; then there is no more memory than there is.
    }
  });
}

void keep_for_stream(const at::Tensor& tensor, void* stream) {
  if (!tensor.is_cuda()) return;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  // hora's memory (and a program's own), of which not every allocator of LibTorch's takes a record.
  if (memory.get_deleter() != c10::cuda::CUDACachingAllocator::get()->raw_deleter()) return;
  c10::cuda::CUDACachingAllocator::recordStream(
      memory,
      c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream), tensor.device().index()));
}

}  // namespace hora::internal
