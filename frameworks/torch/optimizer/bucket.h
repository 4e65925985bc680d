/// Buckets of an optimizer: where each gradient goes, the memory, how it is averaged, and what is
/// under way.
#pragma once

#include <hora/buffer.h>
#include <hora/torch/gradient_hook.h>

#include <memory>
#include <string>

#include "frameworks/torch/optimizer/layout.h"
#include "frameworks/torch/optimizer/parameters.h"
#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"

namespace hora::internal {

/// Views keep the memory alive: a `.grad` may outlive the optimizer. A gradient of the bucket's
/// type is averaged where `.grad` views it; one of another is converted on its way into the bucket,
/// and back into gradient memory, which `.grad` views. Thread rule: one thread at a time.
class GradientBucket {
 public:
  virtual ~GradientBucket() = default;

  /// Before a round's first store(). `step_lane`: see step_lanes.
  void begin_round(const GradientPasses& passes, std::size_t step_lane) {
    passes_ = passes;
    step_lane_ = step_lane;
  }
  /// Takes the parameter's `.grad`: leaves it where autograd has put it, as lent, where it is
  /// averaged by itself and as it is, and peers reach it; else copies it into its place, unless it
  /// is there, and makes `.grad` a view of hora's memory. An undefined one counts as zeros.
  /// `delivered`: what autograd has added, if that is still held for the hook; else undefined.
  /// Throws Error(invalid_argument) for a sparse gradient.
  void store(std::size_t place, const Parameter& parameter, const at::Tensor& delivered);
  /// Zeros, whatever `.grad` is.
  void store_absent(std::size_t place);
  /// All gradients are stored: after this, and in the order of the current stream on a device, the
  /// bucket holds them. `name`: for profilers.
  virtual void pack(const std::string& name) = 0;
  /// After the sum over ranks, in the order of the current stream: what `.grad` views holds it.
  virtual void unpack(const std::string& name) = 0;
  /// Writes for peers where each gradient apart lies (locations_offset()). One whose memory they do
  /// not reach goes into its place.
  void publish_locations(const Context& context);
  /// Copies what is lent into its place in the bucket.
  void collect();
  /// After the sum over ranks, on the CPU: whether any rank had this gradient.
  bool present_anywhere(std::size_t place) const {
    return is_marked(layout_.presence_offset + place * size_of(layout_.type));
  }
  /// After the sum over ranks, on the CPU: whether all ranks have set one step lane.
  bool in_one_step() const;
  /// After unpack(): `.grad` becomes the view where any rank had a gradient, else undefined.
  void publish(std::size_t place, const Parameter& parameter, bool present) const;
  /// After unpack(): bytes of which one is not 0 where any rank has noted a bad value; undefined
  /// where no pass has checked.
  at::Tensor flag() const;
  /// Peers are done with what is lent, or have never begun. Returns its bytes.
  std::size_t give_back_gradients();
  /// Never frees the memory, nor what is lent: peers may still write to it.
  void give_up_memory() noexcept;

  void* stream() const { return current_stream(gradient_memory_.device()); }
  /// Bytes of the bucket as one tensor, on the current stream.
  TensorView range(std::size_t begin, std::size_t end) const;
  TensorView view(std::size_t place) const {
    const std::size_t begin = layout_.places[place].offset;
    return range(begin, begin + wire(place).nbytes());
  }
  /// Parts averaged under a name each: the gradients apart, wherever they lie, then the rest.
  std::vector<TensorView> parts() const;
  /// The places, in the wire type, with the parameters' strides.
  std::vector<at::Tensor> wires() const;
  /// The bucket's first bytes, as one dimension of this type.
  at::Tensor elements(c10::ScalarType type, std::size_t bytes) const;

  const BucketLayout& layout() const { return layout_; }
  std::byte* data() const { return memory_->data(); }

 protected:
  /// `parameters` in registration order, as the layout's indices count; all on one device.
  GradientBucket(const Context& context, const BucketLayout& layout,
                 const std::vector<Parameter>& parameters);

  /// `source`: the gradient in the order of elements of its place; undefined: there is none.
  virtual void put(std::size_t place, const at::Tensor& source) = 0;

  const GradientPasses& passes() const { return passes_; }
  std::size_t step_lane() const { return step_lane_; }
  at::Tensor all_bytes() const { return elements(at::kByte, layout_.bytes); }
  /// The place in the bucket, with the parameter's strides.
  const at::Tensor& wire(std::size_t place) const { return places_[place].wire; }
  /// The gradient that is averaged where autograd has put it; undefined: it is in the bucket.
  const at::Tensor& lent(std::size_t place) const { return places_[place].lent.gradient; }
  /// The tensor that `.grad` views: wire(place), or a place in gradient memory.
  const at::Tensor& gradient(std::size_t place) const { return places_[place].gradient; }
  /// unpack()'s flag lies after gradient memory, in the type of what is unpacked: room for any.
  static constexpr std::size_t unpack_flag_bytes = 8;
  const at::Tensor& gradient_memory() const { return gradient_memory_; }
  std::byte* unpack_flag() const {
    return static_cast<std::byte*>(gradient_memory_.data_ptr()) + layout_.gradient_bytes;
  }

 private:
  struct Lent {
    at::Tensor gradient;
    c10::Storage memory;  ///< its, whatever set_data() makes of the gradient
  };
  struct PlaceTensors {
    at::Tensor wire;
    at::Tensor gradient;
    Lent lent = {};
  };
  /// Whether the parameter's gradient is lent from now on.
  bool lend(std::size_t place, const Parameter& parameter, const at::Tensor& delivered);
  /// The parameter's gradient in its place's order, or undefined; `.grad` becomes gradient(place).
  at::Tensor take(std::size_t place, const Parameter& parameter) const;
  void collect(std::size_t place);
  bool is_marked(std::size_t offset) const;

  const BucketLayout layout_;
  GradientPasses passes_;
  std::size_t step_lane_ = 0;
  std::shared_ptr<Buffer> memory_;
  at::Tensor gradient_memory_;
  std::vector<PlaceTensors> places_;
};

std::unique_ptr<GradientBucket> make_cuda_bucket(const Context& context, const BucketLayout& layout,
                                                 const std::vector<Parameter>& parameters);

/// How gradients are laid out in buckets, and averaged.
struct BucketOptions {
  std::string name;  ///< of the collectives: "<name>.<bucket>"
  std::size_t bucket_bytes = 0;
  Compression compression = Compression::none;
  ReduceOp op = ReduceOp::average;
  double predivide = 1.0;
  bool sharded = false;
  /// Where gradients are sharded: the pass that updates may average them.
  bool fused = false;
  std::shared_ptr<GradientHook> hook = nullptr;
  /// By parameter, or empty: see GradientSize.
  std::vector<std::optional<std::size_t>> groups = {};

  /// Whether something else is made for the buckets, which stay as they are then.
  bool is_tied() const { return sharded || hook || !groups.empty(); }
};

/// A bucket: its memory, and the collectives by which its gradients become the average, or sum,
/// over ranks. Thread rule: one thread at a time.
class Bucket {
 public:
  /// Throws Error(out_of_memory) naming the bucket.
  Bucket(const Peers& peers, const std::vector<Parameter>& parameters, const BucketOptions& options,
         const BucketLayout& layout, std::size_t number);

  std::string name;  ///< of its collectives
  std::unique_ptr<GradientBucket> memory;
  at::Tensor slice;         ///< of sharded gradients' averages, this rank's, until the next round
  std::size_t missing = 0;  ///< gradients not stored in this round
  bool submitted = false;   ///< in this round

  const BucketLayout& layout() const { return memory->layout(); }
  /// All gradients are stored: starts its collectives. Does nothing the second time in a round. Its
  /// memory is not the caller's until proceed() is true, or either has thrown.
  void submit();
  /// After submit(): starts what waits for whether the pass that updates averages, as it does not.
  void begin_apart();
  /// Waits for what was started last; true when the averages are where `.grad` views them, false
  /// where more has been started.
  bool proceed();
  /// Whether collectives on its memory may be under way.
  bool under_way() const;
  /// After submit(): every rank has begun it, or it has failed.
  bool begun_by_all() const;

 private:
  void begin();
  template <class Options>
  Options reduction() const;

  const Peers peers_;
  const BucketOptions options_;
  std::optional<GradientBucketView> hooked_;  ///< for the hook
  bool hook_under_way_ = false;
  // After memory: destroyed first.
  std::vector<Handle> handles_;  ///< of all of it, or of its gradients and lanes
  GroupHandle parts_;
  ResultHandle slice_;
};

/// `order`: indices of the parameters that have a bucket, the one whose gradient comes last first
/// (as registration has it). `parameters`, all on one device, are what places count.
std::vector<BucketLayout> bucket_layouts(const Peers& peers,
                                         const std::vector<Parameter>& parameters,
                                         const BucketOptions& options,
                                         const std::vector<std::size_t>& order);

}  // namespace hora::internal
