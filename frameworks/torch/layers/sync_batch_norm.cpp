#include <hora/torch/collectives.h>
#include <hora/torch/sync_batch_norm.h>
#include <torch/torch.h>

#include <unordered_map>

#include "core/api/internals.h"
#include "core/base/text.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
namespace {

/// All but the second, the channels'.
std::vector<std::int64_t> batch_dimensions(const torch::Tensor& input) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

/// A tensor of one value a channel, shaped so that it goes with an input of `dimensions`.
torch::Tensor beside(const torch::Tensor& channels, std::int64_t dimensions) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dimensions), 1);
  shape[1] = channels.numel();
  return channels.view(shape);
}

/// One rank's: [1, 2 C + 1] in float64, its values a channel, then each channel's mean, then each
/// channel's sum of squared distances from that mean.
torch::Tensor statistics_row(const torch::Tensor& input) {
  const std::int64_t channels = input.size(1);
  torch::Tensor row = torch::zeros({1, 2 * channels + 1}, input.options().dtype(torch::kDouble));
  if (input.numel() == 0) return row;
  const std::int64_t count = input.numel() / channels;
  const auto [variance, mean] =
      torch::var_mean(input, batch_dimensions(input), /*unbiased=*/false, /*keepdim=*/false);
  row.narrow(1, 0, 1).fill_(static_cast<double>(count));
  row.narrow(1, 1, channels).copy_(mean.unsqueeze(0));
  row.narrow(1, 1 + channels, channels).copy_(variance.unsqueeze(0)).mul_(count);
  return row;
}

/// In float64, where the input is: the host does not wait for them.
struct BatchStatistics {
  torch::Tensor count;  ///< values a channel, no dimension
  torch::Tensor mean;   ///< [C], as the other
  torch::Tensor squares;
};

/// Needed by one call besides tensors; the graph holds it for backward.
struct Call : torch::CustomClassHolder {
  Call(const Context& its_context, ProcessSet set, std::string its_name, double its_epsilon)
      : context(its_context), process_set(set), name(std::move(its_name)), epsilon(its_epsilon) {}
  const Context& context;
  ProcessSet process_set;
  std::string name;
  double epsilon;
};

/// float16 and bfloat16 are computed in float32.
torch::ScalarType wide(torch::ScalarType type) {
  return type == torch::kDouble ? torch::kDouble : torch::kFloat;
}

BatchStatistics statistics_of_all(const torch::Tensor& input, const Call& call) {
  const torch::Tensor rows = allgather(call.context, statistics_row(input),
                                       {.name = call.name, .process_set = call.process_set});
  const std::int64_t channels = input.size(1);
  const auto counts = rows.narrow(1, 0, 1);
  const auto means = rows.narrow(1, 1, channels);
  BatchStatistics all{counts.sum(), {}, {}};
  all.mean = (counts * means).sum(0) / all.count;
  all.squares =
      (rows.narrow(1, 1 + channels, channels) + counts * (means - all.mean).square()).sum(0);
  // All ranks together have at least this rank's: elsewhere nothing is read from a GPU.
  if (input.numel() / channels > 1) return all;
  const auto count = static_cast<std::int64_t>(all.count.item<double>());
  if (count > 1) return all;
  refuse_tensor(call.name, "the batches of all ranks have ", count,
                " values a channel; expected more than one in training");
}

struct Normalised : torch::autograd::Function<Normalised> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               const torch::Tensor& input, const torch::Tensor& weight,
                               const torch::Tensor& bias, const c10::intrusive_ptr<Call>& call,
                               BatchStatistics& all) {
    const auto type = wide(input.scalar_type());
    const torch::Tensor values = input.to(type);
    all = statistics_of_all(values, *call);
    const torch::Tensor mean = all.mean.to(type);
    const torch::Tensor variance = all.squares / all.count;
    context->save_for_backward(
        {input, weight, mean, variance.add(call->epsilon).rsqrt().to(type), all.count});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    if (input.numel() == 0) return torch::empty_like(input);
    return torch::batch_norm(values, weight.to(type), bias.to(type), mean, variance.to(type),
                             /*training=*/false, /*momentum=*/0.0, call->epsilon,
                             /*cudnn_enabled=*/false)
        .to(input.scalar_type());
  }

  // Ioffe and Szegedy, "Batch Normalization" (2015), section 3, with sums over all ranks.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto held = context->saved_data["call"].toCapsule();
    const Call& call = static_cast<const Call&>(*held);
    if (torch::GradMode::is_enabled()) {
      refuse_tensor(call.name, "SyncBatchNorm has no second derivatives (create_graph)");
    }
    const auto saved = context->get_saved_variables();
    const torch::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &scale = saved[3];
    const torch::Tensor& count = saved[4];
    const std::int64_t dimensions = input.dim();
    const torch::Tensor gradient = gradients[0].to(mean.scalar_type());
    torch::Tensor centered = input.to(mean.scalar_type()) - beside(mean, dimensions);
    const torch::Tensor sum = gradient.sum(batch_dimensions(gradient));
    const torch::Tensor weighted = (gradient * centered).sum(batch_dimensions(gradient));

    const torch::Tensor means =
        allreduce(call.context, torch::stack({sum, weighted}).to(torch::kDouble),
                  {.name = call.name + std::string(kBackwardEnd),
                   .op = ReduceOp::sum,
                   .process_set = call.process_set}) /
        count;
    const auto each = [&](const torch::Tensor& channels) {
      return beside(channels.to(mean.scalar_type()), dimensions);
    };
    const torch::Tensor of_input = centered.mul_(each(-means[1] * scale.square()))
                                       .add_(gradient)
                                       .sub_(each(means[0]))
                                       .mul_(each(scale * weight));
    return {of_input.to(input.scalar_type()),
            (weighted * scale).to(weight.scalar_type()),
            sum.to(weight.scalar_type()),
            {},
            {}};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const Context& context,
                                     const torch::nn::BatchNormOptions& module_options,
                                     ProcessSet process_set)
    : NormImplBase(module_options),
      context_(&context),
      process_set_(process_set),
      name_(std::string(kSyncBatchNormName) +
            std::to_string(Access::next_instance_number(context, kWorld))) {}

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  if (!input.is_floating_point()) {
    refuse_tensor(name_, "has type ", input.scalar_type(), "; expected a floating-point one");
  }
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  refuse_tensor(name_, "has shape ", input.sizes(), "; expected [N, ", options.num_features(),
                ", ...]");
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  if (!is_training() && options.track_running_stats()) {
    return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                     /*training=*/false, /*momentum=*/0.0,
                                                     options.eps());
  }
  const auto plain = input.options().dtype(wide(input.scalar_type())).requires_grad(false);
  const auto channels = options.num_features();
  BatchStatistics all;
  torch::Tensor output = Normalised::apply(
      input, options.affine() ? weight : torch::ones({channels}, plain),
      options.affine() ? bias : torch::zeros({channels}, plain),
      c10::make_intrusive<Call>(*context_, process_set_, name_, options.eps()), all);
  if (is_training() && options.track_running_stats()) {
    const torch::NoGradGuard no_grad;
    num_batches_tracked += 1;
    const auto follow = [this](torch::Tensor& running, const torch::Tensor& latest) {
      const torch::Tensor value = latest.to(running.scalar_type());
      if (const auto momentum = options.momentum()) {
        running.mul_(1 - *momentum).add_(value, *momentum);
      } else {
        running.lerp_(value, num_batches_tracked.to(running.options()).reciprocal());
      }
    };
    follow(running_mean, all.mean);
    follow(running_var, all.squares / (all.count - 1));
  }
  return output;
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "hora::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

namespace {

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() || module.as<torch::nn::BatchNorm2dImpl>() ||
         module.as<torch::nn::BatchNorm3dImpl>();
}

/// The paths of BatchNorms outside of any Sequential, one after the other.
std::string strays(const torch::nn::Module& module, const std::string& path) {
  std::string found;
  for (const auto& child : module.named_children()) {
    const std::string here = path.empty() ? child.key() : path + "." + child.key();
    if (!is_batch_norm(*child.value())) {
      found += strays(*child.value(), here);
    } else if (!module.as<torch::nn::SequentialImpl>()) {
      found += " '" + here + "'";
    }
  }
  return found;
}

/// By the module that they replace: one in several places stays one.
using Converted = std::unordered_map<std::shared_ptr<torch::nn::Module>, SyncBatchNorm>;

template <class BatchNormImpl>
void convert_as(const Context& context, ProcessSet set, const torch::nn::Module& module,
                SyncBatchNorm& made) {
  const auto* const old = module.as<BatchNormImpl>();
  if (!old) return;
  made = SyncBatchNorm(context, old->options, set);
  made->take_over(*old);
}

/// Returns how many places it has changed.
std::size_t convert(const Context& context, ProcessSet set, torch::nn::Module& module,
                    Converted& converted) {
  std::size_t count = 0;
  for (const auto& child : module.named_children()) {
    count += convert(context, set, *child.value(), converted);
  }
  auto* const sequential = module.as<torch::nn::SequentialImpl>();
  if (!sequential) return count;
  const auto names = sequential->named_children().keys();
  for (std::size_t i = 0; i < sequential->size(); ++i) {
    torch::nn::AnyModule& place = *(sequential->begin() + static_cast<std::ptrdiff_t>(i));
    if (!is_batch_norm(*place.ptr())) continue;
    const auto [known, is_new] = converted.try_emplace(place.ptr(), nullptr);
    if (is_new) {
      convert_as<torch::nn::BatchNorm1dImpl>(context, set, *place.ptr(), known->second);
      convert_as<torch::nn::BatchNorm2dImpl>(context, set, *place.ptr(), known->second);
      convert_as<torch::nn::BatchNorm3dImpl>(context, set, *place.ptr(), known->second);
    }
    sequential->replace_module(names[i], known->second);
    place = torch::nn::AnyModule(known->second);
    ++count;
  }
  return count;
}

}  // namespace

std::size_t convert_batch_norm(const Context& context, torch::nn::Module& module,
                               ProcessSet process_set) {
  const std::string outside = is_batch_norm(module) ? " the module itself" : strays(module, "");
  if (!outside.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "hora::convert_batch_norm: these are not held by a torch::nn::Sequential:" +
                    outside + "; declare them as hora::SyncBatchNorm");
  }
  Converted converted;
  return convert(context, process_set, module, converted);
}

}  // namespace hora
