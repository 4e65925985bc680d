#include "tests/frameworks/torch/trainings/network.h"

#include <hora/torch/optim.h>

#include <algorithm>
#include <cmath>

#include "tests/frameworks/torch/averaging_model.h"

namespace hora::internal::test {
namespace {

constexpr std::int64_t kWidth = 8;
constexpr double kRate = 0.05;

torch::Tensor turned(const torch::Tensor& rows) {
  if (rows.dim() == 4) return rows.contiguous(torch::MemoryFormat::ChannelsLast);
  return rows.dim() == 2 ? rows.t().contiguous().t() : rows;
}

std::vector<torch::Tensor> make_parameters(const Block& block, const torch::TensorOptions& type) {
  std::vector<torch::Tensor> made;
  switch (block.kind) {
    case Block::Kind::linear:
      made = {torch::randn({kWidth, kWidth}, type) * 0.3, torch::randn({kWidth}, type) * 0.1};
      break;
    case Block::Kind::convolution:
      made = {torch::randn({2, 2, 3, 3}, type) * 0.3, torch::randn({2}, type) * 0.1};
      break;
    case Block::Kind::wide:
      made = {torch::randn({1024, kWidth}, type) * 0.3, torch::randn({kWidth, 1024}, type) * 0.01};
      break;
    case Block::Kind::gain:
      made = {torch::randn({}, type)};
      break;
    case Block::Kind::nothing:
      made = {torch::randn({0, 3}, type)};
      break;
  }
  for (torch::Tensor& tensor : made) {
    if (block.layout == Block::Layout::turned) tensor = turned(tensor);
    tensor = tensor.detach().set_requires_grad(true);
  }
  return made;
}

torch::Tensor apply(Block::Kind kind, const std::vector<torch::Tensor>& with,
                    const torch::Tensor& rows) {
  switch (kind) {
    case Block::Kind::linear:
      return torch::tanh(torch::linear(rows, with[0], with[1]));
    case Block::Kind::convolution: {
      const auto image = rows.reshape({-1, 2, 2, 2});
      return torch::tanh(torch::conv2d(image, with[0], with[1], 1, 1)).reshape({-1, kWidth});
    }
    case Block::Kind::wide:
      return torch::tanh(torch::linear(torch::tanh(torch::linear(rows, with[0])), with[1]));
    case Block::Kind::gain:
      return torch::tanh(rows * with[0]);
    case Block::Kind::nothing:
      break;
  }
  return with[0].sum();
}

template <class Optimizer, class OnePass = Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make(const std::vector<std::vector<torch::Tensor>>& groups,
                                              bool one_pass, Options options) {
  std::vector<torch::optim::OptimizerParamGroup> made;
  for (const auto& group : groups) {
    if (!group.empty()) made.emplace_back(group, std::make_unique<Options>(options));
    options.lr(options.lr() / 2);  // the next group's
  }
  if (one_pass) return std::make_unique<OnePass>(std::move(made), options);
  return std::make_unique<Optimizer>(std::move(made), options);
}

}  // namespace

Network::Network(const Training& training)
    : training_(training), type_(training.is_float32() ? torch::kFloat : torch::kDouble) {
  torch::manual_seed(training.seed);
  for (std::size_t i = 0; i < training_.blocks.size(); ++i) {
    const Block& block = training_.blocks[i];
    const bool tied = block.tied_to >= 0;
    blocks_.push_back(tied ? blocks_[owner(i)] : make_parameters(block, type_));
    for (std::size_t k = 0; k < blocks_[i].size(); ++k) {
      const std::string name = "block" + std::to_string(i) + (k == 0 ? ".weight" : ".bias");
      if (!tied || block.named) named_.insert(name, blocks_[i][k]);
      if (tied) continue;
      parameters_.push_back(blocks_[i][k]);
      block_of_.push_back(i);
    }
  }
}

std::size_t Network::owner(std::size_t block) const {
  const int to = training_.blocks[block].tied_to;
  return to < 0 ? block : owner(static_cast<std::size_t>(to));
}

std::vector<torch::Tensor> Network::parameters_of(int optimizer) const {
  std::vector<torch::Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (training_.blocks[block_of_[i]].optimizer == optimizer) result.push_back(parameters_[i]);
  }
  return result;
}

std::unique_ptr<torch::optim::Optimizer> Network::make_optimizer(int optimizer,
                                                                 bool one_pass) const {
  std::vector<std::vector<torch::Tensor>> groups(2);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Block& block = training_.blocks[block_of_[i]];
    if (block.optimizer == optimizer) {
      groups[static_cast<std::size_t>(block.options)].push_back(parameters_[i]);
    }
  }
  namespace optim = torch::optim;
  switch (training_.wrapped) {
    case Wrapped::sgd:
      return make<optim::SGD, hora::optim::SGD>(groups, one_pass,
                                                optim::SGDOptions(kRate).weight_decay(0.01));
    case Wrapped::momentum:
      return make<optim::SGD, hora::optim::SGD>(
          groups, one_pass, optim::SGDOptions(kRate).momentum(0.9).dampening(0.1));
    case Wrapped::nesterov:
      return make<optim::SGD, hora::optim::SGD>(
          groups, one_pass, optim::SGDOptions(kRate).momentum(0.8).nesterov(true));
    case Wrapped::adam:
      return make<optim::Adam, hora::optim::Adam>(groups, one_pass,
                                                  optim::AdamOptions(kRate).amsgrad(true));
    case Wrapped::adamw:
      return make<optim::AdamW, hora::optim::AdamW>(groups, one_pass,
                                                    optim::AdamWOptions(kRate).weight_decay(0.1));
    case Wrapped::adagrad:
      return make<optim::Adagrad>(
          groups, one_pass,
          optim::AdagradOptions(kRate).lr_decay(0.1).initial_accumulator_value(0.2));
    case Wrapped::rmsprop:
      break;
  }
  return make<optim::RMSprop>(groups, one_pass,
                              optim::RMSpropOptions(kRate).momentum(0.5).centered(true));
}

void Network::decay(torch::optim::Optimizer& optimizer) const {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(training_.decay * group.options().get_lr());
  }
}

torch::Tensor Network::forward(const torch::Tensor& input, unsigned blocks) const {
  torch::Tensor rows = input;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if ((blocks >> i & 1U) != 0) rows = rows + apply(training_.blocks[i].kind, blocks_[i], rows);
  }
  return rows;
}

torch::Tensor Network::loss(int step, int rank, std::size_t pass) const {
  const Share& share =
      training_.shares[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)];
  const auto place = static_cast<std::uint64_t>(step * training_.ranks + rank) * 16 + pass;
  torch::manual_seed(training_.seed * 100003 + place);
  const std::int64_t rows = 1 + static_cast<std::int64_t>(place % 3);
  const auto input = torch::randn({rows, kWidth}, type_);
  const auto target = torch::randn({rows, kWidth}, type_);
  const unsigned blocks = pass < share.passes.size() ? share.passes[pass] : ~0U;
  const auto loss = (forward(input, blocks) - target).square().mean();
  return share.overflows ? loss * std::numeric_limits<double>::infinity() : loss;
}

void Network::freeze(int step) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const torch::Tensor& parameter = parameters_[i];
    const bool frozen = training_.blocks[block_of_[i]].is_frozen(step);
    if (parameter.requires_grad() == frozen) parameter.set_requires_grad(!frozen);
  }
}

void Network::replace(int step, Moment now) const {
  const Replacement how = training_.replacements[static_cast<std::size_t>(step)];
  if (how == Replacement::none || now != training_.replaced_at) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if ((training_.replaced >> i & 1U) == 0) continue;
    torch::Tensor parameter = parameters_[i];
    if (how == Replacement::type) parameter.set_data(parameter.detach().to(torch::kBFloat16));
    // In the same order in memory.
    const torch::Tensor other = parameter.detach().to(type_).clone();
    if (how != Replacement::memory) other.mul_(0.75);
    if (how != Replacement::in_place) {
      parameter.set_data(other);
    } else {
      parameter.detach().copy_(other);
    }
  }
}

namespace {

torch::ScalarType wire_type(const Training& training, torch::ScalarType type) {
  if (training.compression == Compression::none) return type;
  return training.compression == Compression::float16 ? torch::kHalf : torch::kBFloat16;
}

bool is_finite(const torch::Tensor& tensor) {
  return tensor.isfinite().all().item<bool>();
}

}  // namespace

Reference::Reference(const Context& world, const Training& training, std::vector<int> members)
    : world_(world),
      training_(training),
      members_(std::move(members)),
      network_(training),
      scale_(training.initial_scale),
      norms_(static_cast<std::size_t>(training.optimizers)) {
  for (int i = 0; i < training_.optimizers; ++i) {
    optimizers_.push_back(network_.make_optimizer(i, /*one_pass=*/false));
  }
}

std::vector<torch::Tensor> Reference::gradients_of(int rank, int step) {
  for (torch::Tensor parameter : network_.parameters()) parameter.mutable_grad().reset();
  const auto& share =
      training_.shares[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)];
  for (std::size_t pass = 0; pass < share.passes.size(); ++pass) {
    (network_.loss(step, rank, pass) * scale_).backward();
  }
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : network_.parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

torch::Tensor Reference::average(const std::function<torch::Tensor(int)>& of_rank) const {
  const double scale =
      training_.op == ReduceOp::sum ? 1.0 : 1.0 / static_cast<double>(members_.size());
  return sum_model(world_, members_, scale, of_rank);
}

void Reference::step(int step) {
  network_.freeze(step);
  network_.replace(step, Moment::backward);
  std::vector<std::vector<torch::Tensor>> of_rank(static_cast<std::size_t>(training_.ranks));
  for (const int rank : members_) {
    if (training_.takes_part(rank, step)) {
      of_rank[static_cast<std::size_t>(rank)] = gradients_of(rank, step);
    }
  }
  stepped_ = true;
  for (std::size_t i = 0; i < network_.parameters().size(); ++i) {
    torch::Tensor parameter = network_.parameters()[i];
    const auto wire = wire_type(training_, parameter.scalar_type());
    const auto gradient = [&](int rank) {
      const auto& own = of_rank[static_cast<std::size_t>(rank)];
      return own.empty() ? torch::Tensor() : own[i];
    };
    parameter.mutable_grad().reset();
    if (std::none_of(members_.begin(), members_.end(),
                     [&](int rank) { return gradient(rank).defined(); })) {
      continue;
    }
    const torch::Tensor sum = average([&](int rank) {
      return (gradient(rank).defined() ? gradient(rank) : torch::zeros_like(parameter)).to(wire);
    });
    stepped_ = stepped_ && is_finite(sum);
    parameter.mutable_grad() = (sum.to(parameter.scalar_type()) / scale_).detach();
  }
  for (int i = 0; i < training_.optimizers; ++i) clip(i);
  network_.replace(step, Moment::step);
  for (auto& optimizer : optimizers_) {
    if (stepped_ || !training_.has(Feature::grad_scaler)) optimizer->step();
    network_.decay(*optimizer);
  }
  adapt_scale();
}

void Reference::clip(int optimizer) {
  double squares = 0.0;
  for (const torch::Tensor& parameter : network_.parameters_of(optimizer)) {
    const torch::Tensor& gradient = parameter.grad();
    if (gradient.defined()) squares += gradient.to(torch::kDouble).square().sum().item<double>();
  }
  const double norm = std::sqrt(squares);
  norms_[static_cast<std::size_t>(optimizer)] = norm;
  if (!training_.has(Feature::clipping) || !(norm > training_.max_norm)) return;
  for (torch::Tensor parameter : network_.parameters_of(optimizer)) {
    if (parameter.grad().defined())
      parameter.mutable_grad().mul_(training_.max_norm / (norm + 1e-6));
  }
}

void Reference::adapt_scale() {
  if (!training_.has(Feature::grad_scaler)) return;
  if (!stepped_) {
    scale_ *= 0.5;
    finite_steps_ = 0;
  } else if (++finite_steps_ == training_.growth_interval) {
    scale_ *= 2.0;
    finite_steps_ = 0;
  }
}

}  // namespace hora::internal::test
