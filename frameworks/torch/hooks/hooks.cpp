// PowerSGD and top-k: other ways to average buckets of gradients.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/accumulate.h>
#include <hora/torch/collectives.h>
#include <hora/torch/gradient_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
namespace {

using NamedState = torch::OrderedDict<std::string, torch::Tensor>;

/// The text after the last '.' of GradientBucketView::name: before it stands how many optimizers
/// the process has made.
std::string bucket_number(const std::string& name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

/// Rows and columns: the first dimension by all others; one row for up to one dimension.
std::pair<std::int64_t, std::int64_t> matrix_extents(at::IntArrayRef shape) {
  if (shape.size() < 2) return {1, c10::multiply_integers(shape)};
  return {shape[0], c10::multiply_integers(shape.slice(1))};
}

/// Makes the rows orthonormal, one after the other, in place: Gram-Schmidt, each row twice (Giraud,
/// Langou, Rozloznik, "The loss of orthogonality in the Gram-Schmidt orthogonalization process",
/// 2005). A row that depends on those before it becomes zero.
void orthogonalise_rows(at::Tensor& matrix) {
  for (std::int64_t row = 0; row < matrix.size(0); ++row) {
    at::Tensor vector = matrix.select(0, row);
    const at::Tensor before = at::norm(vector);
    if (row > 0) {
      // Twice: what rounding leaves of the first time is as large as a nearly dependent row.
      for (int time = 0; time < 2; ++time) {
        const at::Tensor others = matrix.narrow(0, 0, row);
        vector.sub_(at::matmul(at::matmul(others, vector), others));
      }
    }
    const at::Tensor after = at::norm(vector);
    // Without a branch: on a GPU it would wait.
    const at::Tensor keep = after > before * std::numeric_limits<float>::epsilon() * 16;
    vector.mul_(at::where(keep, after.reciprocal(), at::zeros_like(after)));
  }
}

/// Tensors side by side in one vector, which is transferred.
struct Joint {
  at::Tensor all;                ///< one dimension, float32
  std::vector<at::Tensor> each;  ///< in it
};

Joint make_joint(const std::vector<std::vector<std::int64_t>>& shapes, const at::Tensor& like) {
  std::vector<std::int64_t> lengths;
  for (const auto& shape : shapes) lengths.push_back(c10::multiply_integers(shape));
  Joint joint{at::zeros({c10::sum_integers(lengths)}, like.options().dtype(at::kFloat)), {}};
  joint.each = joint.all.split_with_sizes(lengths);
  for (std::size_t i = 0; i < shapes.size(); ++i) joint.each[i] = joint.each[i].view(shapes[i]);
  return joint;
}

}  // namespace

struct PowerSgd::State {
  struct Matrix {
    std::size_t gradient = 0;  ///< of the bucket
    at::Tensor error;          ///< as the gradient, float32
    at::Tensor q;              ///< [rank, m]
    at::Tensor values;         ///< [n, m]: this step's gradient and error

    /// Begins its entries in state(), in the bucket of this number.
    std::string prefix(const std::string& number) const {
      return number + "/" + std::to_string(gradient);
    }
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

  /// From the CPU's generator everywhere: the same on all ranks.
  at::Tensor random_q(std::int64_t columns, const at::Tensor& like, int step) const {
    const at::Generator generator =
        at::detail::createCPUGenerator(options.seed + static_cast<std::uint64_t>(step));
    return at::randn({options.rank, columns}, generator, at::TensorOptions(at::kFloat))
        .to(like.device());
  }

  BucketState& bucket_of(const GradientBucketView& view) {
    const auto [place, is_new] = buckets.try_emplace(view.name);
    BucketState& bucket = place->second;
    if (!is_new) return bucket;
    std::vector<std::vector<std::int64_t>> first;
    std::vector<std::vector<std::int64_t>> second;
    for (std::size_t i = 0; i < view.gradients.size(); ++i) {
      const at::Tensor& gradient = view.gradients[i];
      const auto [n, m] = matrix_extents(gradient.sizes());
      if ((n + m) * options.rank >= n * m) {  // the factors would be as large
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

  /// Takes what was loaded for the bucket, if all of it fits.
  void take_loaded(const std::string& number, BucketState& bucket,
                   const std::vector<at::Tensor>& gradients) {
    const torch::Tensor* const step = loaded.find(number + "/step");
    const bool fits = std::ranges::all_of(bucket.matrices, [&](const Matrix& matrix) {
      const torch::Tensor* const q = loaded.find(matrix.prefix(number) + "/q");
      const torch::Tensor* const error = loaded.find(matrix.prefix(number) + "/error");
      return q && q->sizes() == matrix.q.sizes() &&
             (!error || error->sizes() == gradients[matrix.gradient].sizes());
    });
    if (step && fits) {
      bucket.step = step->item<int>();
      for (Matrix& matrix : bucket.matrices) {
        const at::Device device = matrix.q.device();
        matrix.q = loaded[matrix.prefix(number) + "/q"].to(device);
        const torch::Tensor* const error = loaded.find(matrix.prefix(number) + "/error");
        if (error) matrix.error = error->to(device);
      }
    }
    for (const std::string& key : loaded.keys()) {
      if (key.starts_with(number + "/")) loaded.erase(key);
    }
  }

  void start(BucketState& bucket, const GradientBucketView& view, const at::Tensor& values,
             const char* pass) {
    bucket.under_way.emplace(allreduce_async_(
        view.context, values, {.name = view.name + pass, .process_set = view.process_set}));
  }

  /// The averages of P and of the vectors have arrived.
  void project(BucketState& bucket, const GradientBucketView& view) {
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
  void finish(BucketState& bucket, const GradientBucketView& view) {
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

  PowerSgdOptions options;
  std::map<std::string, BucketState> buckets;
  NamedState loaded;  ///< for buckets that have not begun yet
};

PowerSgd::PowerSgd(const PowerSgdOptions& options) : state_(std::make_unique<State>()) {
  const auto require = [](const char* what, int value, int least) {
    if (value >= least) return;
    refuse_argument("PowerSgd: ", what, " is ", value, "; expected ", least, " or more");
  };
  require("rank", options.rank, 1);
  require("start_step", options.start_step, 0);
  state_->options = options;
}

PowerSgd::~PowerSgd() = default;

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

NamedState PowerSgd::state() const {
  NamedState state = state_->loaded;
  for (const auto& [name, bucket] : state_->buckets) {
    const std::string number = bucket_number(name);
    state.insert(number + "/step", at::scalar_tensor(bucket.step, at::kInt));
    for (const State::Matrix& matrix : bucket.matrices) {
      state.insert(matrix.prefix(number) + "/q", matrix.q);
      if (matrix.error.defined()) state.insert(matrix.prefix(number) + "/error", matrix.error);
    }
  }
  return state;
}

void PowerSgd::set_state(const NamedState& state) {
  state_->buckets.clear();
  state_->loaded.clear();
  for (const auto& item : state) state_->loaded.insert(item.key(), item.value().clone());
}

std::string PowerSgd::describe() const {
  const PowerSgdOptions& options = state_->options;
  return c10::str("PowerSGD of rank ", options.rank, " from step ", options.start_step,
                  options.error_feedback ? ", error feedback" : "",
                  options.warm_start ? ", warm start" : "", ", seed ", options.seed);
}

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
    refuse_argument("TopK: share is ", options.share, "; expected more than 0 and at most 1");
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
  const double share = std::ceil(state_->options.share * static_cast<double>(all.numel()));
  const std::int64_t k = std::clamp<std::int64_t>(static_cast<std::int64_t>(share), 1, all.numel());
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

NamedState TopK::state() const {
  NamedState state;
  for (const auto& [number, bucket] : state_->buckets) {
    if (bucket.error.defined()) state.insert(number, bucket.error);
  }
  return state;
}

void TopK::set_state(const NamedState& state) {
  state_->buckets.clear();
  for (const auto& item : state) state_->buckets[item.key()].error = item.value().clone();
}

std::string TopK::describe() const {
  return c10::str("top-k of share ", state_->options.share,
                  state_->options.error_feedback ? ", error feedback" : "");
}

}  // namespace hora
