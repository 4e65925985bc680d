#include "frameworks/torch/optimizer/gradient_buckets.h"

#include <hora/error.h>
#include <hora/printable.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"

namespace hora::internal {
namespace {

/// Layouts whose places count parameters as they are registered.
std::vector<BucketLayout> assign(const Peers& peers, const std::vector<Parameter>& parameters,
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
  const auto slices = static_cast<std::size_t>(options.averaging.sharded ? peers.size : 1);
  const AveragingFacts facts{.arena_wanted = wants_tensor_arena(peers.context),
                             .on_host = parameters.empty() || parameters.front().tensor.is_cpu(),
                             .nodes = peers.context.cross_size(),
                             .sharded = options.averaging.sharded,
                             .fused = options.averaging.fused != nullptr,
                             .hooked = options.averaging.hook != nullptr,
                             .adasum = options.averaging.op == ReduceOp::adasum};
  auto layouts = assign_buckets(sizes, options.bucket_bytes, slices, least_apart(facts));
  for (BucketLayout& layout : layouts) {
    for (GradientPlace& place : layout.places) place.gradient = order[place.gradient];
  }
  return layouts;
}

}  // namespace

GradientBuckets::GradientBuckets(const Peers& peers, const std::vector<Parameter>& parameters,
                                 const BucketOptions& options,
                                 const std::vector<std::size_t>& order)
    : peers_(peers), parameters_(parameters), slots_(parameters.size()) {
  for (const BucketLayout& layout : assign(peers, parameters, options, order)) {
    const std::string name = options.name + "." + std::to_string(buckets_.size());
    try {
      add(layout, name, options);
    } catch (const Error& error) {
      throw Error(error.code(),
                  "bucket " + in_quotes(name) + " of " + std::to_string(layout.bytes) +
                      " bytes: " + error.what(),
                  error.rank(), name);
    }
  }
}

std::vector<BucketLayout> GradientBuckets::laid_out(const std::vector<std::size_t>& order,
                                                    const BucketOptions& options) const {
  return assign(peers_, parameters_, options, order);
}

bool GradientBuckets::laid_out_as(const std::vector<std::size_t>& order,
                                  const BucketOptions& options) const {
  std::vector<BucketLayout> present;
  for (const Bucket& bucket : buckets_) present.push_back(bucket.memory->layout());
  return hold_the_same(present, laid_out(order, options));
}

void GradientBuckets::add(const BucketLayout& layout, const std::string& name,
                          const BucketOptions& options) {
  const bool on_host = parameters_.front().tensor.device().is_cpu();
  Bucket bucket;
  bucket.name = name;
  bucket.memory =
      (on_host ? make_host_bucket : make_cuda_bucket)(peers_.context, layout, parameters_);
  bucket.average = make_average(peers_, options.averaging, *bucket.memory, name);
  bucket.missing = layout.places.size();
  for (std::size_t place = 0; place < layout.places.size(); ++place) {
    const std::size_t index = layout.places[place].gradient;
    bucket.slots.push_back(index);
    slots_[index] = {buckets_.size(), place, false};
  }
  buckets_.push_back(std::move(bucket));
}

void GradientBuckets::begin_round(std::optional<double> unscale, std::size_t step_lane) {
  for (const Bucket& bucket : buckets_) {
    bucket.memory->begin_round(gradient_passes(bucket.memory->wire_type(), unscale, peers_.size),
                               step_lane);
  }
}

void GradientBuckets::store(std::size_t index, const at::Tensor& delivered) {
  const ParameterSlot& slot = slots_[index];
  buckets_[*slot.bucket].memory->store(slot.place, parameters_[index], delivered);
  note_stored(index);
}

void GradientBuckets::store_absent(std::size_t index) {
  const ParameterSlot& slot = slots_[index];
  buckets_[*slot.bucket].memory->store_absent(slot.place);
  note_stored(index);
}

void GradientBuckets::note_stored(std::size_t index) {
  ParameterSlot& slot = slots_[index];
  Bucket& bucket = buckets_[*slot.bucket];
  slot.stored = true;
  bucket.missing -= 1;
  if (bucket.missing == 0) submit(bucket);
}

void GradientBuckets::submit_all() {
  for (Bucket& bucket : buckets_) submit(bucket);
}

void GradientBuckets::begin_apart() {
  for (Bucket& bucket : buckets_) bucket.average->begin_apart();
}

void GradientBuckets::submit(Bucket& bucket) {
  if (bucket.submitted) return;
  bucket.memory->pack(bucket.name);
  bucket.average->begin();
  bucket.submitted = true;
}

bool GradientBuckets::proceed(Bucket& bucket) {
  if (!bucket.average->proceed()) return false;
  bucket.memory->unpack(bucket.name);
  return true;
}

bool GradientBuckets::has_come(std::size_t bucket) {
  Bucket& one = buckets_[bucket];
  return one.submitted && one.average->begun_by_all() && proceed(one) &&
         one.memory->in_one_step().value();
}

std::size_t GradientBuckets::release(std::size_t bucket) {
  GradientBucket& memory = *buckets_[bucket].memory;
  const std::size_t bytes = memory.lent_bytes();
  memory.give_back_gradients();
  return bytes;
}

std::vector<std::string> GradientBuckets::awaited() const {
  std::vector<std::string> names;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.average->begun_by_all()) names.push_back(bucket.name);
  }
  return names;
}

void GradientBuckets::wait() {
  std::exception_ptr failure;
  std::vector<Bucket*> waiting;
  for (Bucket& bucket : buckets_) waiting.push_back(&bucket);
  while (!waiting.empty()) {
    std::erase_if(waiting, [&](Bucket* bucket) {
      try {
        return proceed(*bucket);
      } catch (...) {
        if (!failure) failure = std::current_exception();
        return true;
      }
    });
  }
  if (failure) std::rethrow_exception(failure);
}

std::optional<bool> GradientBuckets::present_anywhere(std::size_t index) const {
  const ParameterSlot& slot = slots_[index];
  return buckets_[*slot.bucket].memory->present_anywhere(slot.place);
}

std::optional<bool> GradientBuckets::in_one_step() const {
  for (const Bucket& bucket : buckets_) {
    const auto answer = bucket.memory->in_one_step();
    if (!answer.value_or(false)) return answer;
  }
  return true;
}

void GradientBuckets::publish(std::size_t index, bool present) const {
  const ParameterSlot& slot = slots_[index];
  buckets_[*slot.bucket].memory->publish(slot.place, parameters_[index], present);
}

void GradientBuckets::end_round() {
  for (ParameterSlot& slot : slots_) slot.stored = false;
  for (Bucket& bucket : buckets_) {
    bucket.submitted = false;
    bucket.missing = bucket.slots.size();
  }
}

void GradientBuckets::give_back_gradients() {
  for (Bucket& bucket : buckets_) bucket.memory->give_back_gradients();
}

std::vector<at::Tensor> GradientBuckets::flags() const {
  std::vector<at::Tensor> flags;
  for (const Bucket& bucket : buckets_) {
    const at::Tensor flag = bucket.memory->flag();
    if (flag.defined()) flags.push_back(flag);
  }
  return flags;
}

void GradientBuckets::give_up_memory() noexcept {
  for (Bucket& bucket : buckets_) {
    // The pass that updates, which no handle knows of, may read what is submitted, too.
    if (bucket.submitted || bucket.average->under_way()) bucket.memory->give_up_memory();
  }
}

}  // namespace hora::internal
