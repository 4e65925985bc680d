#include "frameworks/torch/optimizer/bucket_average.h"

#include <hora/hora.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "frameworks/torch/tensor_view.h"

namespace hora::internal {
namespace {

/// Options: those of allreduce or of reduce_scatter.
template <class Options>
Options reduction_options(const Peers& peers, const AveragingOptions& options,
                          const std::string& name) {
  return {.name = name,
          .op = options.op,
          .process_set = peers.set,
          .prescale = 1.0 / options.predivide,
          .postscale = options.predivide};
}

/// All of the bucket in one collective: the lanes after the gradients are reduced like them.
class WholeAverage final : public BucketAverage {
 public:
  WholeAverage(const Peers& peers, const GradientBucket& bucket, AllreduceOptions options)
      : peers_(peers), bucket_(bucket), options_(std::move(options)) {}

  void begin() override { handle_ = allreduce_async(peers_.context, bucket_.view(), options_); }
  bool proceed() override {
    handle_.wait(bucket_.view().stream);
    return true;
  }
  bool under_way() const override { return handle_.valid(); }
  bool begun_by_all() const override { return handle_.ready(); }

 private:
  const Peers peers_;
  const GradientBucket& bucket_;
  const AllreduceOptions options_;
  Handle handle_;
};

/// The gradients that are apart each in a collective of its own, the rest and the lanes in another.
class AverageInParts final : public BucketAverage {
 public:
  AverageInParts(const Peers& peers, const GradientBucket& bucket, AllreduceOptions options)
      : peers_(peers), bucket_(bucket), options_(std::move(options)) {}

  void begin() override {
    handle_ = grouped_allreduce_async(peers_.context, bucket_.parts(), options_);
  }
  bool proceed() override {
    handle_.wait();
    return true;
  }
  bool under_way() const override { return handle_.valid(); }
  bool begun_by_all() const override { return handle_.ready(); }

 private:
  const Peers peers_;
  const GradientBucket& bucket_;
  const AllreduceOptions options_;
  GroupHandle handle_;
};

/// The lanes by a sum of their own, beside the gradients' collectives.
class LanesApart : public BucketAverage {
 public:
  LanesApart(const Peers& peers, const GradientBucket& bucket, const std::string& name)
      : peers_(peers), bucket_(bucket), name_(name) {}

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

  const Peers& peers() const { return peers_; }
  const GradientBucket& bucket() const { return bucket_; }
  const std::string& name() const { return name_; }

 private:
  const Peers peers_;
  const GradientBucket& bucket_;
  const std::string name_;
  Handle lanes_;
};

/// Each gradient by itself: Adasum's factors are a tensor's own.
class AdasumAverage final : public LanesApart {
 public:
  using LanesApart::LanesApart;

 private:
  void begin_gradients() override {
    handles_.clear();
    for (std::size_t place = 0; place < bucket().places(); ++place) {
      handles_.push_back(allreduce_async(peers().context, bucket().view(place),
                                         {.name = name() + "." + std::to_string(place),
                                          .op = ReduceOp::adasum,
                                          .process_set = peers().set}));
    }
  }
  bool proceed_gradients() override {
    for (Handle& handle : handles_) handle.wait(bucket().view().stream);
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
  HookedAverage(const Peers& peers, const GradientBucket& bucket, const std::string& name,
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
                 const AveragingOptions& options)
      : LanesApart(peers, bucket, name),
        memory_(bucket),
        options_(reduction_options<ReduceScatterOptions>(peers, options, name)),
        fused_(options.fused) {}

  void begin_apart() override {
    if (!gradients_under_way()) reduce();
  }

 private:
  void begin_gradients() override {
    memory_.slice().reset();
    if (fused_) {
      memory_.publish_locations(peers().context);  // before the lanes, which order it
    } else {
      reduce();
    }
  }
  void reduce() {
    memory_.collect();
    TensorView rows = bucket().gradients_view();
    rows.shape = {peers().size, rows.elements() / peers().size};
    handle_ = reduce_scatter_async(peers().context, rows, options_);
  }
  bool proceed_gradients() override {
    if (fused_ && fused_->updates()) return true;
    if (!gradients_under_way()) {  // other ranks have answered no
      reduce();
      return false;
    }
    memory_.slice() = to_tensor(handle_.wait(bucket().view().stream)).flatten();
    return true;
  }
  bool gradients_under_way() const override { return handle_.valid(); }

  GradientBucket& memory_;
  const ReduceScatterOptions options_;
  const std::shared_ptr<FusedRounds> fused_;
  ResultHandle handle_;
};

}  // namespace

std::unique_ptr<BucketAverage> make_average(const Peers& peers, const AveragingOptions& options,
                                            GradientBucket& bucket, const std::string& name) {
  if (options.hook) return std::make_unique<HookedAverage>(peers, bucket, name, options.hook);
  if (options.sharded) return std::make_unique<ShardedAverage>(peers, bucket, name, options);
  if (options.op == ReduceOp::adasum) return std::make_unique<AdasumAverage>(peers, bucket, name);
  auto reduction = reduction_options<AllreduceOptions>(peers, options, name);
  if (bucket.layout().apart > 0) {
    return std::make_unique<AverageInParts>(peers, bucket, std::move(reduction));
  }
  return std::make_unique<WholeAverage>(peers, bucket, std::move(reduction));
}

}  // namespace hora::internal
