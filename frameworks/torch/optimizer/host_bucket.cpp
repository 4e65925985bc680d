/// A bucket in the node's shared memory: each gradient is copied in as soon as it comes.
#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

#include "frameworks/torch/data_type.h"
#include "frameworks/torch/optimizer/gradient_bucket.h"
#include "frameworks/torch/optimizer/step_calls.h"
#include "ops/local/convert.h"
#include "ops/local/kernels.h"

namespace hora {
namespace {

std::vector<std::byte> bytes_of_one(DataType type) {
  const at::Tensor one = at::ones({1}, to_scalar_type(type));
  std::vector<std::byte> bytes(size_of(type));
  std::memcpy(bytes.data(), one.data_ptr(), bytes.size());
  return bytes;
}

struct Values {
  DataType type;
  std::byte* data;
};

/// False where the pass checks and has found a bad value.
bool move(const Values& from, const Values& to, std::size_t count, const GradientPass& pass) {
  if (from.type == to.type && pass.is_plain()) {
    if (from.data != to.data) stream_copy(to.data, from.data, count * size_of(from.type));
    return true;
  }
  const bool within = convert(from.type, from.data, to.type, to.data, count,
                              {.scale = pass.scale, .limit = pass.limit(to.type)});
  return within || !pass.checked;
}

/// Presence, the flag and the step lanes travel in elements at the bucket's end (see BucketLayout).
class HostBucket final : public GradientBucket {
 public:
  HostBucket(const Context& context, const BucketLayout& layout,
             const std::vector<Parameter>& parameters)
      : GradientBucket(context, layout, parameters), one_(bytes_of_one(layout.type)) {
    // Padding is summed as well: stale bytes could be NaN or slow denormals.
    std::memset(data(), 0, layout.bytes);
  }

  void pack(const std::string&) override {
    mark(data() + layout().flag_offset, !good_);
    good_ = true;
    for (std::size_t lane = 0; lane < step_lanes; ++lane) mark(step(lane), lane == step_lane());
  }

  void unpack(const std::string&) override {
    bool good = true;
    for (std::size_t place = 0; place < layout().places.size(); ++place) {
      if (!needs_unpacking(place)) continue;
      good &= move(on_wire(place), shown(place, gradient(place)), count(place), passes().unpack);
    }
    *unpack_flag() = std::byte{!good};
  }

  std::optional<bool> present_anywhere(std::size_t place) const override {
    return is_marked(presence(place));
  }

  std::optional<bool> in_one_step() const override {
    int marked = 0;
    for (std::size_t lane = 0; lane < step_lanes; ++lane) marked += is_marked(step(lane)) ? 1 : 0;
    return marked <= 1;
  }

 private:
  void put(std::size_t place, const at::Tensor& source) override {
    mark(presence(place), source.defined());
    if (source.defined()) {
      good_ &= move(shown(place, source), on_wire(place), count(place), passes().pack);
    } else {
      std::memset(on_wire(place).data, 0, wire(place).nbytes());
    }
  }

  Values on_wire(std::size_t place) const {
    return {layout().type, data() + layout().places[place].offset};
  }
  /// As autograd has it, or as `.grad` shows it.
  Values shown(std::size_t place, const at::Tensor& tensor) const {
    return {layout().places[place].type, static_cast<std::byte*>(tensor.data_ptr())};
  }
  std::size_t count(std::size_t place) const {
    return static_cast<std::size_t>(wire(place).numel());
  }
  std::byte* presence(std::size_t place) const {
    return data() + layout().presence_offset + place * one_.size();
  }
  std::byte* step(std::size_t lane) const {
    return data() + layout().step_offset + lane * one_.size();
  }
  /// An element of the bucket's type: 1 or 0.
  void mark(std::byte* element, bool set) const {
    if (set) {
      std::memcpy(element, one_.data(), one_.size());
    } else {
      std::memset(element, 0, one_.size());
    }
  }
  /// By any rank: averaging scales the element, and it cannot round to zero, so any set bit counts.
  bool is_marked(const std::byte* element) const {
    return std::any_of(element, element + one_.size(),
                       [](std::byte value) { return value != std::byte{}; });
  }

  std::vector<std::byte> one_;  // the bucket's type's 1
  bool good_ = true;            // what this round's stores have found
};

}  // namespace

std::unique_ptr<GradientBucket> make_host_bucket(const Context& context, const BucketLayout& layout,
                                                 const std::vector<Parameter>& parameters) {
  return std::make_unique<HostBucket>(context, layout, parameters);
}

}  // namespace hora
