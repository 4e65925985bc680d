/// Named tensors as the bytes of a safetensors file, and the state of an optimizer as named
/// tensors.
///
/// A safetensors file has 8 bytes, little endian: the header's length n; n bytes of JSON, which
/// begin with '{' and may end with spaces; then the tensors' bytes, row-major, little endian,
/// without a gap. The header is {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin,
/// end]}, ...}, offsets from the header's end, and may hold "__metadata__", an object of texts
/// (github.com/huggingface/safetensors, "Format").
///
/// A parameter's state are entries "conv1.weight/momentum_buffer" and so on, one a field of
/// LibTorch's state class, numbers as tensors without dimensions. Where a rank has consecutive
/// elements of it alone (sharding) they are "conv1.weight[128:256]/momentum_buffer", elements in
/// the parameter's memory order, whose sizes and strides are "conv1.weight/layout". Besides there
/// are "kind", the name of the state class, and "groups/0", ...: the groups' options.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "frameworks/torch/optimizer/parameters.h"

namespace hora::internal {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;
using Bytes = std::vector<std::byte>;
using Metadata = std::map<std::string, std::string>;

/// Makes `image` a file of the tensors, of any device and strides: byte by byte what the format's
/// own library writes. Waits for the device. Its memory is used again. Throws
/// Error(invalid_argument) naming the one that cannot be written.
void fill_image(Bytes& image, const NamedTensors& tensors, const Metadata& metadata = {});

/// Throws as fill_image() would.
void check_can_fill(const NamedTensors& tensors);

struct ImageContents {
  Metadata metadata;
  NamedTensors tensors = NamedTensors();  ///< on the CPU, views of the bytes, which they keep
};

/// Reads an image, each byte of which is in the header or in one tensor. The error says what is
/// wrong with it.
tl::expected<ImageContents, std::string> contents_of(Bytes file);

/// A text's bytes as uint8, and back from a contiguous tensor on the CPU.
at::Tensor text_tensor(std::string_view text);
std::string text_of(const at::Tensor& tensor);

/// The entries of state_of(), by how they change.
struct OptimizerState {
  NamedTensors tensors = NamedTensors();  ///< of the state; and layouts, which never change
  NamedTensors numbers = NamedTensors();  ///< views
  NamedTensors rest = NamedTensors();     ///< OptionsCopies::of()
};

/// Throws as state_of().
OptimizerState parts_of_state(torch::optim::Optimizer& optimizer,
                              std::span<const OptimizerPiece> pieces);
/// Copies of an optimizer's options, which take long to make: only of those that have changed, but
/// for their learning rate, since the last ones.
class OptionsCopies {
 public:
  /// Returns the groups' options, and the state's class where there is state; valid until the next
  /// call.
  NamedTensors of(torch::optim::Optimizer& optimizer);

 private:
  struct Group {
    std::unique_ptr<torch::optim::OptimizerOptions> options;
    at::Tensor bytes;
    std::size_t rate = 0;  ///< where it lies in them; npos: nowhere
  };
  std::vector<Group> groups_;
};
/// A hash of where the state's tensors and numbers lie.
std::size_t addresses_of_state(torch::optim::Optimizer& optimizer);

/// Returns the optimizer's state, not copied. Throws Error(invalid_argument) for state that is of
/// none of LibTorch's classes.
NamedTensors state_of(torch::optim::Optimizer& optimizer, std::span<const OptimizerPiece> pieces);

/// `saved`: all entries of any number of ranks. The state that the optimizer had is lost. Throws
/// Error(invalid_argument) where its class, groups or parameters do not fit.
void load_state(torch::optim::Optimizer& optimizer, std::span<const OptimizerPiece> pieces,
                std::span<const NamedTensors> saved);

}  // namespace hora::internal
