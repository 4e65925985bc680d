#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/error.h>
#include <hora/torch/collectives.h>
#include <hora/torch/top_k.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>

#include "frameworks/torch/hooks/bucket_number.h"

namespace hora {
using namespace internal;
namespace {

std::int64_t number_of(double share, std::int64_t elements) {
  const auto number = static_cast<std::int64_t>(std::ceil(share * static_cast<double>(elements)));
  return std::clamp<std::int64_t>(number, 1, elements);
}

}  // namespace

struct TopK::State {
  struct BucketState {
    at::Tensor error;                    ///< as `values`, float32
    std::optional<TensorHandle> chosen;  ///< [ranks, 2, k] of int32: places, and values' bits
  };
  TopKOptions options;
  std::map<std::string, BucketState> buckets;  ///< by their numbers
};

TopK::TopK(const TopKOptions& options) : state_(std::make_unique<State>()) {
  if (!(options.share > 0.0 && options.share <= 1.0)) {
    throw Error(ErrorCode::invalid_argument, "TopK: share is " + std::to_string(options.share) +
                                                 "; expected more than 0 and at most 1");
  }
  state_->options = options;
}

TopK::~TopK() = default;

void TopK::begin(const GradientBucketView& bucket) {
  const at::NoGradGuard no_grad;
  State::BucketState& state = state_->buckets[bucket_number(bucket.name)];
  if (state.error.defined()) {  // it may have been loaded, from another layout of buckets
    if (state.error.sizes() == bucket.values.sizes()) {
      state.error = state.error.to(bucket.values.device());
    } else {
      state.error.reset();
    }
  }
  const at::Tensor sum = state.error.defined() ? bucket.values + state.error : bucket.values;
  at::Tensor all = sum.to(at::kFloat);
  const std::int64_t k = number_of(state_->options.share, all.numel());
  const at::Tensor places =
      std::get<1>(at::topk(all.abs(), k, /*dim=*/0, /*largest=*/true, /*sorted=*/false));
  const at::Tensor chosen =
      at::stack({places.to(at::kInt), all.index_select(0, places).view(at::kInt)});
  if (state_->options.error_feedback) {
    // Where nothing was added up `all` may be the bucket itself.
    state.error = all.is_same(bucket.values) ? all.clone() : all;
    state.error.index_fill_(0, places, 0.0);
  }
  state.chosen.emplace(
      allgather_async(bucket.context, chosen.unsqueeze(0),
                      {.name = bucket.name + ".top_k", .process_set = bucket.process_set}));
}

bool TopK::proceed(const GradientBucketView& bucket) {
  const at::NoGradGuard no_grad;
  State::BucketState& state = state_->buckets[bucket_number(bucket.name)];
  const at::Tensor chosen = state.chosen->wait();
  state.chosen.reset();
  at::Tensor sum = at::zeros({bucket.values.numel()}, bucket.values.options().dtype(at::kFloat));
  for (std::int64_t rank = 0; rank < chosen.size(0); ++rank) {
    const at::Tensor of_rank = chosen.select(0, rank);
    sum.index_add_(0, of_rank.select(0, 0).to(at::kLong), of_rank.select(0, 1).view(at::kFloat));
  }
  sum.mul_(1.0 / static_cast<double>(chosen.size(0)));
  bucket.values.copy_(sum);
  return true;
}

torch::OrderedDict<std::string, torch::Tensor> TopK::state() const {
  torch::OrderedDict<std::string, torch::Tensor> state;
  for (const auto& [number, bucket] : state_->buckets) {
    if (bucket.error.defined()) state.insert(number, bucket.error);
  }
  return state;
}

void TopK::set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) {
  state_->buckets.clear();
  for (const auto& item : state) state_->buckets[item.key()].error = item.value().clone();
}

std::string TopK::describe() const {
  return "top-k of share " + std::to_string(state_->options.share) +
         (state_->options.error_feedback ? ", error feedback" : "");
}

}  // namespace hora
