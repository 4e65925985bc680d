#include "frameworks/torch/optimizer/buckets.h"

#include <hora/error.h>
#include <hora/hora.h>
#include <hora/printable.h>

#include <algorithm>
#include <utility>

#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"

namespace hora::internal {
namespace {

/// Options: those of allreduce or of reduce_scatter.
template <class Options>
Options reduction_options(const Peers& peers, const BucketOptions& options,
                          const std::string& name) {
  return {.name = name,
          .op = options.op,
          .process_set = peers.set,
          .prescale = 1.0 / options.predivide,
          .postscale = options.predivide};
}

/// All of the bucket in one collective: the lanes after the gradients are reduced like them. Where
/// gradients are apart, each of these in one of its own, the rest and the lanes in another.
class PlainAverage final : public BucketAverage {
 public:
  PlainAverage(const Peers& peers, const GradientBucket& bucket, AllreduceOptions options)
      : peers_(peers), bucket_(bucket), options_(std::move(options)) {}

  void begin() override {
    if (in_parts()) {
      parts_ = grouped_allreduce_async(peers_.context, bucket_.parts(), options_);
    } else {
      whole_ = allreduce_async(peers_.context, bucket_.view(), options_);
    }
  }
  bool proceed() override {
    if (in_parts()) {
      parts_.wait();
    } else {
      whole_.wait(bucket_.view().stream);
    }
    return true;
  }
  bool under_way() const override { return in_parts() ? parts_.valid() : whole_.valid(); }
  bool begun_by_all() const override { return in_parts() ? parts_.ready() : whole_.ready(); }

 private:
  bool in_parts() const { return bucket_.layout().apart > 0; }

  const Peers peers_;
  const GradientBucket& bucket_;
  const AllreduceOptions options_;
  Handle whole_;
  GroupHandle parts_;
};

/// The lanes by a sum of their own, beside the gradients' collectives.
class LanesApart : public BucketAverage {
 public:
  LanesApart(const Peers& peers, GradientBucket& bucket, std::string name)
      : peers_(peers), bucket_(bucket), name_(std::move(name)) {}

  void begin() final {
    // First: a hook that throws is called again, and nothing else is under way.
    begin_gradients();
    lanes_ = allreduce_async(
        peers_.context, bucket_.lanes(),
        {.name = name_ + ".presence", .op = ReduceOp::sum, .process_set = peers_.set});
  }
  bool proceed() final {
    if (lanes_.valid()) lanes_.wait(bucket_.view().stream);
    return proceed_gradients();
  }
  bool under_way() const final { return lanes_.valid() || gradients_under_way(); }
  bool begun_by_all() const final { return lanes_.ready(); }

 protected:
  virtual void begin_gradients() = 0;
  virtual bool proceed_gradients() = 0;
  virtual bool gradients_under_way() const = 0;

  const Peers peers_;
  GradientBucket& bucket_;
  const std::string name_;

 private:
  Handle lanes_;
};

/// Each gradient by itself: Adasum's factors are a tensor's own.
class AdasumAverage final : public LanesApart {
 public:
  using LanesApart::LanesApart;

 private:
  void begin_gradients() override {
    handles_.clear();
    for (std::size_t place = 0; place < bucket_.layout().places.size(); ++place) {
      handles_.push_back(allreduce_async(peers_.context, bucket_.view(place),
                                         {.name = name_ + "." + std::to_string(place),
                                          .op = ReduceOp::adasum,
                                          .process_set = peers_.set}));
    }
  }
  bool proceed_gradients() override {
    for (Handle& handle : handles_) handle.wait(bucket_.view().stream);
    return true;
  }
  bool gradients_under_way() const override {
    return std::any_of(handles_.begin(), handles_.end(),
                       [](const Handle& handle) { return handle.valid(); });
  }

  std::vector<Handle> handles_;
};

class HookedAverage final : public LanesApart {
 public:
  HookedAverage(const Peers& peers, GradientBucket& bucket, const std::string& name,
                std::shared_ptr<GradientHook> hook)
      : LanesApart(peers, bucket, name),
        hook_(std::move(hook)),
        view_{peers.context, peers.set, name, bucket.wires(), bucket.all_gradients()} {}

 private:
  void begin_gradients() override {
    under_way_ = true;
    hook_->begin(view_);
  }
  bool proceed_gradients() override {
    under_way_ = !hook_->proceed(view_);
    return !under_way_;
  }
  bool gradients_under_way() const override { return under_way_; }

  const std::shared_ptr<GradientHook> hook_;
  const GradientBucketView view_;
  bool under_way_ = false;
};

class ShardedAverage final : public LanesApart {
 public:
  ShardedAverage(const Peers& peers, GradientBucket& bucket, const std::string& name,
                 const BucketOptions& options)
      : LanesApart(peers, bucket, name),
        options_(reduction_options<ReduceScatterOptions>(peers, options, name)),
        fused_(options.fused) {}

  void begin_apart() override {
    if (gradients_under_way()) return;
    bucket_.collect();
    TensorView rows = bucket_.gradients_view();
    rows.shape = {peers_.size, rows.elements() / peers_.size};
    handle_ = reduce_scatter_async(peers_.context, rows, options_);
  }

 private:
  void begin_gradients() override {
    bucket_.slice.reset();
    if (fused_) {
      bucket_.publish_locations(peers_.context);  // before the lanes, which order it
    } else {
      begin_apart();
    }
  }
  bool proceed_gradients() override {
    if (gradients_under_way()) {  // else the pass that updates averages
      bucket_.slice = to_tensor(handle_.wait(bucket_.view().stream)).flatten();
    }
    return true;
  }
  bool gradients_under_way() const override { return handle_.valid(); }

  const ReduceScatterOptions options_;
  const bool fused_;
  ResultHandle handle_;
};

/// `bucket` outlives it; where gradients are sharded, it gets its slice. `name`: of the bucket's
/// collectives, or their prefix.
std::unique_ptr<BucketAverage> make_average(const Peers& peers, const BucketOptions& options,
                                            GradientBucket& bucket, const std::string& name) {
  if (options.hook) return std::make_unique<HookedAverage>(peers, bucket, name, options.hook);
  if (options.sharded) return std::make_unique<ShardedAverage>(peers, bucket, name, options);
  if (options.op == ReduceOp::adasum) return std::make_unique<AdasumAverage>(peers, bucket, name);
  return std::make_unique<PlainAverage>(peers, bucket,
                                        reduction_options<AllreduceOptions>(peers, options, name));
}

}  // namespace

void Bucket::submit() {
  if (submitted) return;
  memory->pack(name);
  average->begin();
  submitted = true;
}

bool Bucket::proceed() {
  if (!average->proceed()) return false;
  memory->unpack(name);
  return true;
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

std::vector<Bucket> make_buckets(const Peers& peers, const std::vector<Parameter>& parameters,
                                 const BucketOptions& options,
                                 const std::vector<std::size_t>& order) {
  std::vector<Bucket> buckets;
  for (const BucketLayout& layout : bucket_layouts(peers, parameters, options, order)) {
    Bucket& bucket = buckets.emplace_back();
    bucket.name = options.name + "." + std::to_string(buckets.size() - 1);
    bucket.missing = layout.places.size();
    try {
      const bool on_host = parameters.front().tensor.is_cpu();
      bucket.memory =
          (on_host ? make_host_bucket : make_cuda_bucket)(peers.context, layout, parameters);
    } catch (const Error& error) {
      throw Error(error.code(),
                  "bucket " + in_quotes(bucket.name) + " of " + std::to_string(layout.bytes) +
                      " bytes: " + error.what(),
                  error.rank(), bucket.name);
    }
    bucket.average = make_average(peers, options, *bucket.memory, bucket.name);
  }
  return buckets;
}

}  // namespace hora::internal
