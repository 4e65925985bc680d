#include <hora/torch_groups.h>

#include <optional>

#include "frameworks/torch/collectives/differentiable.h"
#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"

namespace hora {
namespace {

/// The type that a tensor travels in.
c10::ScalarType travelling_type(const std::string& name, const torch::Tensor& tensor,
                                Compression compression) {
  check_dense(name, tensor);
  const std::optional<DataType> type = to_data_type(tensor.scalar_type());
  if (!type || !is_floating_point(*type)) return tensor.scalar_type();
  return to_scalar_type(wire_type(compression, *type));
}

}  // namespace

torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options, Compression compression) {
  const auto type = travelling_type(options.name, tensor, compression);
  if (type == tensor.scalar_type()) return allreduce(context, tensor, options);
  torch::Tensor sent = tensor.to(type);
  if (is_recorded({tensor})) {
    sent = allreduce(context, sent, options);
  } else {
    allreduce_(context, sent, options);
  }
  return sent.to(tensor.scalar_type());
}

Tensors grouped_allreduce(const Context& context, const Tensors& tensors,
                          const AllreduceOptions& options, Compression compression) {
  const bool recorded = is_recorded(tensors);
  Tensors sent;
  for (const torch::Tensor& tensor : tensors) {
    const auto type = travelling_type(options.name, tensor, compression);
    sent.push_back(tensor.to(type, /*non_blocking=*/false, /*copy=*/!recorded));
  }
  if (recorded) {
    sent = grouped_allreduce(context, sent, options);
  } else {
    grouped_allreduce_(context, sent, options);
  }
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = sent[i].to(tensors[i].scalar_type());
  return sent;
}

}  // namespace hora
