#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <hora/error.h>
#include <hora/torch/collectives.h>
#include <hora/torch/power_sgd.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "frameworks/torch/hooks/bucket_number.h"
#include "frameworks/torch/hooks/low_rank.h"

namespace hora {
using namespace internal;
namespace {

/// Tensors side by side in one vector, which is transferred.
struct Joint {
  at::Tensor all;                ///< one dimension, float32
  std::vector<at::Tensor> each;  ///< in it
};

Joint make_joint(const std::vector<std::vector<std::int64_t>>& shapes, const at::Tensor& like) {
  std::vector<std::int64_t> begins;
  std::int64_t length = 0;
  for (const auto& shape : shapes) {
    begins.push_back(length);
    length += c10::multiply_integers(shape);
  }
  Joint joint{at::zeros({length}, like.options().dtype(at::kFloat)), {}};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    joint.each.push_back(
        joint.all.narrow(0, begins[i], c10::multiply_integers(shapes[i])).view(shapes[i]));
  }
  return joint;
}

}  // namespace

struct PowerSgd::State {
  struct Matrix {
    std::size_t gradient = 0;  ///< of the bucket
    at::Tensor error;          ///< as the gradient, float32
    at::Tensor q;              ///< [rank, m]
    at::Tensor values;         ///< [n, m]: this step's gradient and error
  };
  struct BucketState {
    std::vector<Matrix> matrices;
    std::vector<std::size_t> vectors;  ///< gradients that travel as they are
    Joint first;                       ///< P^T of each matrix, [rank, n], then the vectors
    Joint second;                      ///< Q^T of each matrix
    std::optional<TensorHandle> under_way;
    bool second_pass = false;
    int step = 0;
  };

  BucketState& bucket_of(const GradientBucketView& view);
  void start(BucketState& bucket, const GradientBucketView& view, const at::Tensor& values,
             const char* pass);
  void project(BucketState& bucket, const GradientBucketView& view);
  void finish(BucketState& bucket, const GradientBucketView& view);
  at::Tensor random_q(std::int64_t columns, const at::Tensor& like, int step) const;
  void take_loaded(const std::string& number, BucketState& bucket,
                   const std::vector<at::Tensor>& gradients) const;

  PowerSgdOptions options;
  std::map<std::string, BucketState> buckets;
  torch::OrderedDict<std::string, torch::Tensor> loaded;  ///< for buckets that have not begun yet
};

PowerSgd::PowerSgd(const PowerSgdOptions& options) : state_(std::make_unique<State>()) {
  const auto refuse = [](const char* what, int value, const char* least) {
    throw Error(ErrorCode::invalid_argument, std::string("PowerSgd: ") + what + " is " +
                                                 std::to_string(value) + "; expected " + least +
                                                 " or more");
  };
  if (options.rank < 1) refuse("rank", options.rank, "1");
  if (options.start_step < 0) refuse("start_step", options.start_step, "0");
  state_->options = options;
}

PowerSgd::~PowerSgd() = default;

at::Tensor PowerSgd::State::random_q(std::int64_t columns, const at::Tensor& like, int step) const {
  // From the CPU's generator everywhere: the same on all ranks.
  return random_matrix(options.rank, columns, options.seed + static_cast<std::uint64_t>(step))
      .to(like.device());
}

PowerSgd::State::BucketState& PowerSgd::State::bucket_of(const GradientBucketView& view) {
  const auto [place, is_new] = buckets.try_emplace(view.name);
  BucketState& bucket = place->second;
  if (!is_new) return bucket;
  std::vector<std::vector<std::int64_t>> first;
  std::vector<std::vector<std::int64_t>> second;
  for (std::size_t i = 0; i < view.gradients.size(); ++i) {
    const at::Tensor& gradient = view.gradients[i];
    const auto [n, m] = matrix_extents(gradient.sizes());
    if (!worth_factoring(n, m, options.rank)) {
      bucket.vectors.push_back(i);
      continue;
    }
    bucket.matrices.push_back({i, {}, random_q(m, gradient, 0), {}});
    first.push_back({options.rank, n});
    second.push_back({options.rank, m});
  }
  for (const std::size_t i : bucket.vectors) first.push_back(view.gradients[i].sizes().vec());
  bucket.first = make_joint(first, view.values);
  bucket.second = make_joint(second, view.values);
  take_loaded(bucket_number(view.name), bucket, view.gradients);
  return bucket;
}

void PowerSgd::State::take_loaded(const std::string& number, BucketState& bucket,
                                  const std::vector<at::Tensor>& gradients) const {
  const torch::Tensor* const step = loaded.find(number + "/step");
  if (!step) return;
  for (const Matrix& matrix : bucket.matrices) {
    const std::string prefix = number + "/" + std::to_string(matrix.gradient);
    const torch::Tensor* const q = loaded.find(prefix + "/q");
    const torch::Tensor* const error = loaded.find(prefix + "/error");
    if (!q || q->sizes() != matrix.q.sizes()) return;
    if (error && error->sizes() != gradients[matrix.gradient].sizes()) return;
  }
  bucket.step = step->item<int>();
  for (Matrix& matrix : bucket.matrices) {
    const std::string prefix = number + "/" + std::to_string(matrix.gradient);
    const at::Device device = matrix.q.device();
    matrix.q = loaded[prefix + "/q"].to(device);
    if (const torch::Tensor* error = loaded.find(prefix + "/error"))
      matrix.error = error->to(device);
  }
}

void PowerSgd::State::start(BucketState& bucket, const GradientBucketView& view,
                            const at::Tensor& values, const char* pass) {
  bucket.under_way.emplace(allreduce_async_(
      view.context, values, {.name = view.name + pass, .process_set = view.process_set}));
}

void PowerSgd::begin(const GradientBucketView& view) {
  const at::NoGradGuard no_grad;
  State::BucketState& bucket = state_->bucket_of(view);
  bucket.second_pass = false;
  if (bucket.step < state_->options.start_step) {
    state_->start(bucket, view, view.values, ".plain");
    return;
  }
  for (std::size_t i = 0; i < bucket.matrices.size(); ++i) {
    State::Matrix& matrix = bucket.matrices[i];
    const at::Tensor& gradient = view.gradients[matrix.gradient];
    const auto [n, m] = matrix_extents(gradient.sizes());
    const at::Tensor sum = matrix.error.defined() ? gradient + matrix.error : gradient;
    matrix.values = sum.to(at::kFloat).reshape({n, m});
    if (!state_->options.warm_start) matrix.q = state_->random_q(m, gradient, bucket.step);
    bucket.first.each[i].copy_(at::matmul(matrix.q, matrix.values.t()));
  }
  for (std::size_t i = 0; i < bucket.vectors.size(); ++i) {
    bucket.first.each[bucket.matrices.size() + i].copy_(view.gradients[bucket.vectors[i]]);
  }
  state_->start(bucket, view, bucket.first.all, ".p");
}

bool PowerSgd::proceed(const GradientBucketView& view) {
  const at::NoGradGuard no_grad;
  State::BucketState& bucket = state_->bucket_of(view);
  bucket.under_way->wait();
  bucket.under_way.reset();
  const bool plain = bucket.step < state_->options.start_step;
  if (!plain && !bucket.second_pass) {
    state_->project(bucket, view);
    if (!bucket.matrices.empty()) return false;
  } else if (!plain) {
    state_->finish(bucket, view);
  }
  bucket.step += 1;
  return true;
}

/// The averages of P and of the vectors have arrived.
void PowerSgd::State::project(BucketState& bucket, const GradientBucketView& view) {
  for (std::size_t i = 0; i < bucket.vectors.size(); ++i) {
    view.gradients[bucket.vectors[i]].copy_(bucket.first.each[bucket.matrices.size() + i]);
  }
  if (bucket.matrices.empty()) return;
  for (std::size_t i = 0; i < bucket.matrices.size(); ++i) {
    orthogonalise_rows(bucket.first.each[i]);
    bucket.second.each[i].copy_(at::matmul(bucket.first.each[i], bucket.matrices[i].values));
  }
  bucket.second_pass = true;
  start(bucket, view, bucket.second.all, ".q");
}

/// The average of Q has arrived.
void PowerSgd::State::finish(BucketState& bucket, const GradientBucketView& view) {
  for (std::size_t i = 0; i < bucket.matrices.size(); ++i) {
    Matrix& matrix = bucket.matrices[i];
    const at::Tensor& gradient = view.gradients[matrix.gradient];
    const at::Tensor product = at::matmul(bucket.first.each[i].t(), bucket.second.each[i]);
    if (options.error_feedback) {
      matrix.error = (matrix.values - product).reshape(gradient.sizes());
    }
    gradient.copy_(product.reshape(gradient.sizes()));
    if (options.warm_start) matrix.q = bucket.second.each[i].clone();
    matrix.values.reset();
  }
}

torch::OrderedDict<std::string, torch::Tensor> PowerSgd::state() const {
  torch::OrderedDict<std::string, torch::Tensor> state;
  std::set<std::string> begun;
  for (const auto& [name, bucket] : state_->buckets) {
    const std::string number = bucket_number(name);
    begun.insert(number);
    state.insert(number + "/step", at::scalar_tensor(bucket.step, at::kInt));
    for (const State::Matrix& matrix : bucket.matrices) {
      const std::string prefix = number + "/" + std::to_string(matrix.gradient);
      state.insert(prefix + "/q", matrix.q);
      if (matrix.error.defined()) state.insert(prefix + "/error", matrix.error);
    }
  }
  for (const auto& item : state_->loaded) {
    if (!begun.contains(item.key().substr(0, item.key().find('/')))) {
      state.insert(item.key(), item.value());
    }
  }
  return state;
}

void PowerSgd::set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) {
  state_->buckets.clear();
  state_->loaded.clear();
  for (const auto& item : state) state_->loaded.insert(item.key(), item.value().clone());
}

std::string PowerSgd::describe() const {
  const PowerSgdOptions& options = state_->options;
  return "PowerSGD of rank " + std::to_string(options.rank) + " from step " +
         std::to_string(options.start_step) + (options.error_feedback ? ", error feedback" : "") +
         (options.warm_start ? ", warm start" : "") + ", seed " + std::to_string(options.seed);
}

}  // namespace hora
