#include "frameworks/torch/optimizer/bucket.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/api/internals.h"
#include "core/base/checked.h"
#include "frameworks/torch/tensor_view.h"
#include "ops/local/kernels.h"

namespace hora::internal {
namespace {

// A view with the parameter's strides: optimizers and autograd are fastest where they agree, and a
// gradient of the same strides is copied as one block. `owner` keeps the memory alive.
template <class Owner>
at::Tensor make_view(const Owner& owner, void* data, DataType type, const at::Tensor& parameter) {
  at::OptionalIntArrayRef strides;
  if (parameter.is_non_overlapping_and_dense()) strides = parameter.strides();
  return tensor_on(owner, data, to_scalar_type(type), parameter.device(), parameter.sizes(),
                   strides);
}

// AccumulateGrad makes `.grad` a detached view of what it gets, where nothing else uses that; the
// engine holds it for the hooks behind. It may be a view itself, which alone holds its base then.
bool has_other_user(const at::Tensor& gradient, const at::Tensor& delivered) {
  std::size_t users = 1;
  if (delivered.defined() && delivered.layout() == at::kStrided &&
      delivered.storage().is_alias_of(gradient.storage()) && !delivered.is_same(gradient)) {
    if (delivered.use_count() > 1) return true;
    users += 1;
    if (delivered.is_view()) {
      if (delivered._base().use_count() > 1) return true;
      users += 1;
    }
  }
  return gradient.use_count() > 1 ||
         static_cast<std::size_t>(gradient.storage().use_count()) > users;
}

/// Whether the gradient lies where peers reach it, as its place has it, and nothing but `.grad`,
/// and what autograd is about to drop, uses its memory: no other parameter's gradient, tensor of
/// the user's or graph of gradients.
bool can_stay(const at::Tensor& gradient, const at::Tensor& place, const at::Tensor& delivered) {
  if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.numel() == 0 ||
      gradient.scalar_type() != place.scalar_type() || !gradient.is_cpu() ||
      !same_memory_order(gradient, place)) {
    return false;
  }
  const auto* const data = static_cast<const std::byte*>(gradient.data_ptr());
  return in_tensor_arena(data) && in_tensor_arena(data + gradient.nbytes() - 1) &&
         !gradient.requires_grad() && !has_other_user(gradient, delivered);
}

}  // namespace

GradientBucket::GradientBucket(const Context& context, const BucketLayout& layout,
                               const std::vector<Parameter>& parameters)
    : layout_(layout) {
  const at::Device device = parameters[layout.places.front().gradient].tensor.device();
  memory_ = std::make_shared<Buffer>(context, memory_bytes(layout), to_device(device));
  gradient_memory_ =
      at::zeros({static_cast<std::int64_t>(layout.gradient_bytes + unpack_flag_bytes)},
                at::TensorOptions(at::kByte).device(device));
  auto* gradients = static_cast<std::byte*>(gradient_memory_.data_ptr());
  for (const GradientPlace& place : layout_.places) {
    const at::Tensor& parameter = parameters[place.gradient].tensor;
    const at::Tensor wire =
        make_view(memory_, memory_->data() + place.offset, layout_.type, parameter);
    places_.push_back({wire, place.type == layout_.type
                                 ? wire
                                 : make_view(gradient_memory_, gradients + place.gradient_offset,
                                             place.type, parameter)});
  }
}

void GradientBucket::store(std::size_t place, const Parameter& parameter,
                           const at::Tensor& delivered) {
  places_[place].lent = {};
  put(place, lend(place, parameter, delivered) ? lent(place) : take(place, parameter));
}

void GradientBucket::store_absent(std::size_t place) {
  places_[place].lent = {};
  put(place, {});
}

bool GradientBucket::lend(std::size_t place, const Parameter& parameter,
                          const at::Tensor& delivered) {
  const at::Tensor& gradient = parameter.tensor.mutable_grad();
  const bool plain = passes_.pack.is_plain() && passes_.unpack.is_plain();
  if (place >= layout_.apart || !plain || !can_stay(gradient, wire(place), delivered)) return false;
  places_[place].lent = {gradient, gradient.storage()};
  return true;
}

std::size_t GradientBucket::give_back_gradients() {
  std::size_t bytes = 0;
  for (std::size_t place = 0; place < layout_.apart; ++place) {
    if (lent(place).defined()) bytes += lent(place).nbytes();
    places_[place].lent = {};
  }
  return bytes;
}

at::Tensor GradientBucket::take(std::size_t place, const Parameter& parameter) const {
  const at::Tensor& own = gradient(place);
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) return {};
  if (gradient.layout() != at::kStrided) {
    throw Error(ErrorCode::invalid_argument,
                "Parameter '" + parameter.name +
                    "' has a sparse gradient; hora averages dense ones only: set "
                    "DistributedOptimizerOptions::sparse_as_dense, build its layer with "
                    "sparse(false), or leave it out of the wrapped optimizer",
                -1, parameter.name);
  }
  at::Tensor source = gradient;
  const bool same_type = gradient.scalar_type() == own.scalar_type();
  if (gradient.data_ptr() != own.data_ptr() && !(same_type && same_memory_order(gradient, own))) {
    own.copy_(gradient);
    source = own;
  }
  gradient = own;
  return source;
}

void GradientBucket::publish_locations(const Context& context) {
  auto* const locations = reinterpret_cast<Location*>(data() + locations_offset(layout_));
  for (std::size_t place = 0; place < layout_.apart; ++place) {
    locations[place] = kNowhere;
    if (!lent(place).defined()) continue;
    const auto location = location_of(
        context, static_cast<const std::byte*>(lent(place).data_ptr()), wire(place).nbytes());
    if (location) {
      locations[place] = *location;
    } else {
      collect(place);
    }
  }
}

void GradientBucket::collect() {
  for (std::size_t place = 0; place < layout_.apart; ++place) {
    if (lent(place).defined()) collect(place);
  }
}

void GradientBucket::collect(std::size_t place) {
  stream_copy(data() + layout_.places[place].offset,
              static_cast<const std::byte*>(lent(place).data_ptr()), wire(place).nbytes());
  places_[place].lent = {};
}

// By any rank: averaging scales the element, and it cannot round to zero, so any set bit counts.
bool GradientBucket::is_marked(std::size_t offset) const {
  const std::byte* const element = data() + offset;
  return std::any_of(element, element + size_of(layout_.type),
                     [](std::byte value) { return value != std::byte{}; });
}

bool GradientBucket::in_one_step() const {
  int marked = 0;
  for (std::size_t lane = 0; lane < step_lanes; ++lane) {
    marked += is_marked(layout_.step_offset + lane * size_of(layout_.type)) ? 1 : 0;
  }
  return marked <= 1;
}

void GradientBucket::publish(std::size_t place, const Parameter& parameter, bool present) const {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const at::Tensor& average = lent(place).defined() ? lent(place) : this->gradient(place);
  if (!present) {
    gradient.reset();
  } else if (!gradient.is_same(average)) {
    gradient = average;
  }
}

at::Tensor GradientBucket::flag() const {
  if (passes_.pack.checked) {
    return all_bytes().narrow(0, static_cast<std::int64_t>(layout_.flag_offset),
                              static_cast<std::int64_t>(size_of(layout_.type)));
  }
  if (passes_.unpack.checked) {
    return gradient_memory_.narrow(0, static_cast<std::int64_t>(layout_.gradient_bytes),
                                   unpack_flag_bytes);
  }
  return {};
}

void GradientBucket::give_up_memory() noexcept {
  never_free(memory_);
  for (const PlaceTensors& place : places_) {
    if (place.lent.memory) never_free(place.lent.memory);
  }
}

TensorView GradientBucket::range(std::size_t begin, std::size_t end) const {
  return {memory_->data() + begin,
          layout_.type,
          {static_cast<std::int64_t>((end - begin) / size_of(layout_.type))},
          memory_->device(),
          stream()};
}

std::vector<TensorView> GradientBucket::parts() const {
  std::vector<TensorView> parts;
  for (std::size_t place = 0; place < layout_.apart; ++place) {
    parts.push_back(view(place));
    if (const at::Tensor& gradient = lent(place); gradient.defined()) {
      parts.back().data = static_cast<std::byte*>(gradient.data_ptr());
    }
  }
  parts.push_back(range(layout_.joint_offset, layout_.bytes));
  return parts;
}

std::vector<at::Tensor> GradientBucket::wires() const {
  std::vector<at::Tensor> wires;
  for (const PlaceTensors& place : places_) wires.push_back(place.wire);
  return wires;
}

at::Tensor GradientBucket::elements(c10::ScalarType type, std::size_t bytes) const {
  return tensor_on(memory_, memory_->data(), type, gradient_memory_.device(),
                   {static_cast<std::int64_t>(bytes / c10::elementSize(type))});
}

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

/// Presence, the flag and the step lanes travel in elements at the bucket's end (see BucketLayout).
class HostBucket final : public GradientBucket {
 public:
  HostBucket(const Context& context, const BucketLayout& layout,
             const std::vector<Parameter>& parameters)
      : GradientBucket(context, layout, parameters), one_(bytes_of_one(layout.type)) {
    // Padding is summed as well: stale bytes could be NaN or slow denormals. Places apart
    // themselves have no memory before the first gradient is copied in.
    for (std::size_t place = 0; place < layout.apart; ++place) {
      const std::size_t end = layout.places[place].offset + wire(place).nbytes();
      std::memset(data() + end, 0, align_up(end) - end);
    }
    std::memset(data() + layout.joint_offset, 0, layout.bytes - layout.joint_offset);
  }

  void pack(const std::string&) override {
    mark(layout().flag_offset, 0, !good_);
    good_ = true;
    for (std::size_t lane = 0; lane < step_lanes; ++lane) {
      mark(layout().step_offset, lane, lane == step_lane());
    }
  }

  void unpack(const std::string&) override {
    bool good = true;
    for (std::size_t place = 0; place < layout().places.size(); ++place) {
      const bool converted = layout().places[place].type != layout().type;
      if (!converted && passes().unpack.is_plain()) continue;
      good &= move(place, on_wire(place), shown(place, gradient(place)), passes().unpack);
    }
    *unpack_flag() = std::byte{!good};
  }

 private:
  void put(std::size_t place, const at::Tensor& source) override {
    mark(layout().presence_offset, place, source.defined());
    if (lent(place).defined()) return;
    if (source.defined()) {
      good_ &= move(place, shown(place, source), on_wire(place), passes().pack);
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
  /// False where the pass checks and has found a bad value.
  bool move(std::size_t place, const Values& from, const Values& to,
            const GradientPass& pass) const {
    const auto count = static_cast<std::size_t>(wire(place).numel());
    if (from.type == to.type && pass.is_plain()) {
      if (from.data != to.data) stream_copy(to.data, from.data, count * size_of(from.type));
      return true;
    }
    const bool within = convert(from.type, from.data, to.type, to.data, count,
                                {.scale = pass.scale, .limit = pass.limit(to.type)});
    return within || !pass.checked;
  }
  /// Sets lane `number` of those at `offset`: an element of the bucket's type, 1 or 0.
  void mark(std::size_t offset, std::size_t number, bool set) const {
    std::byte* const element = data() + offset + number * one_.size();
    if (set) {
      std::memcpy(element, one_.data(), one_.size());
    } else {
      std::memset(element, 0, one_.size());
    }
  }

  std::vector<std::byte> one_;  // the bucket's type's 1
  bool good_ = true;            // what this round's stores have found
};

}  // namespace

Bucket::Bucket(const Peers& peers, const std::vector<Parameter>& parameters,
               const BucketOptions& options, const BucketLayout& layout, std::size_t number)
    : name(options.name + "." + std::to_string(number)),
      missing(layout.places.size()),
      peers_(peers),
      options_(options) {
  try {
    if (parameters.front().tensor.is_cpu()) {
      memory = std::make_unique<HostBucket>(peers.context, layout, parameters);
    } else {
      memory = make_cuda_bucket(peers.context, layout, parameters);
    }
  } catch (const Error& error) {
    throw Error(error.code(),
                "bucket " + in_quotes(name) + " of " + std::to_string(layout.bytes) +
                    " bytes: " + error.what(),
                error.rank(), name);
  }
  if (!options.hook) return;
  hooked_.emplace(
      GradientBucketView{peers.context, peers.set, name, memory->wires(),
                         memory->elements(to_scalar_type(layout.type), layout.presence_offset)});
}

template <class Options>
Options Bucket::reduction() const {
  return {.name = name,
          .op = options_.op,
          .process_set = peers_.set,
          .prescale = 1.0 / options_.predivide,
          .postscale = options_.predivide};
}

void Bucket::submit() {
  if (submitted) return;
  memory->pack(name);
  begin();
  submitted = true;
}

void Bucket::begin() {
  handles_.clear();
  slice.reset();
  if (options_.hook) {
    hook_under_way_ = true;
    options_.hook->begin(*hooked_);
  } else if (options_.fused) {
    memory->publish_locations(peers_.context);  // before the lanes, which order it
  } else if (options_.sharded) {
    begin_apart();
  } else if (options_.op == ReduceOp::adasum) {
    // Each gradient by itself: Adasum's factors are a tensor's own.
    AllreduceOptions own{.op = ReduceOp::adasum, .process_set = peers_.set};
    for (std::size_t place = 0; place < layout().places.size(); ++place) {
      own.name = name + "." + std::to_string(place);
      handles_.push_back(allreduce_async(peers_.context, memory->view(place), own));
    }
  } else {
    const auto options = reduction<AllreduceOptions>();
    if (layout().apart > 0) {
      parts_ = grouped_allreduce_async(peers_.context, memory->parts(), options);
    } else {
      handles_.push_back(
          allreduce_async(peers_.context, memory->range(0, layout().bytes), options));
    }
    return;  // the lanes are reduced like the gradients
  }
  // After these: a hook that throws is called again, and nothing else is under way.
  handles_.push_back(allreduce_async(
      peers_.context, memory->range(layout().presence_offset, layout().bytes),
      {.name = name + ".presence", .op = ReduceOp::sum, .process_set = peers_.set}));
}

void Bucket::begin_apart() {
  if (slice_.valid()) return;
  memory->collect();
  TensorView rows = memory->range(0, layout().presence_offset);
  rows.shape = {peers_.size, rows.elements() / peers_.size};
  slice_ = reduce_scatter_async(peers_.context, rows, reduction<ReduceScatterOptions>());
}

bool Bucket::proceed() {
  void* const stream = memory->stream();
  for (Handle& handle : handles_) {
    if (handle.valid()) handle.wait(stream);
  }
  if (parts_.valid()) parts_.wait();
  // Else the pass that updates averages.
  if (slice_.valid()) slice = to_tensor(slice_.wait(stream)).flatten();
  if (hooked_) hook_under_way_ = !options_.hook->proceed(*hooked_);
  if (hook_under_way_) return false;
  memory->unpack(name);
  return true;
}

bool Bucket::under_way() const {
  return hook_under_way_ || slice_.valid() || parts_.valid() ||
         std::ranges::any_of(handles_, &Handle::valid);
}

bool Bucket::begun_by_all() const {
  return parts_.ready() && std::ranges::all_of(handles_, &Handle::ready);
}

std::vector<BucketLayout> bucket_layouts(const Peers& peers,
                                         const std::vector<Parameter>& parameters,
                                         const BucketOptions& options,
                                         const std::vector<std::size_t>& order) {
  std::vector<GradientSize> sizes;
  for (const std::size_t index : order) {
    const at::Tensor& tensor = parameters[index].tensor;
    const DataType type = to_data_type(tensor.scalar_type()).value();
    sizes.push_back({type, static_cast<std::size_t>(tensor.numel()) * size_of(type),
                     wire_type(options.compression, type),
                     options.groups.empty() ? std::nullopt : options.groups[index]});
  }
  const auto slices = static_cast<std::size_t>(options.sharded ? peers.size : 1);
  // Gradients of some size are averaged by themselves, each under a name of its own or by the pass
  // that updates, so that every rank may have it anywhere in the node's memory. Between nodes a
  // bucket is one message, and what else looks at a bucket wants it in one piece. As small as
  // arenas have them: below, copying costs less than a collective.
  const bool on_host = parameters.empty() || parameters.front().tensor.is_cpu();
  const bool apart = wants_tensor_arena(peers.context) && on_host &&
                     peers.context.cross_size() == 1 && (!options.sharded || options.fused) &&
                     !options.hook && options.op != ReduceOp::adasum;
  auto layouts = assign_buckets(sizes, options.bucket_bytes, slices,
                                apart ? std::size_t{64} << 10 : kNeverApart);
  for (BucketLayout& layout : layouts) {
    for (GradientPlace& place : layout.places) place.gradient = order[place.gradient];
  }
  return layouts;
}

}  // namespace hora::internal
