/// The parameters that an optimizer averages, as values: which they are, and how one is described
/// when ranks compare theirs. Pure.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace hora::internal {

/// A name, and the identity of the parameter that has it: equal identities are one parameter.
struct NamedIdentity {
  std::string name;
  const void* identity = nullptr;
};

/// Indices into `named` of the parameters that the optimizer's groups hold, in registration order,
/// each once (weights tied under several names count under the first).
///
/// Every parameter in a group must have a name: else it would be stepped with its own rank's
/// gradient alone. The reverse is no error: a named parameter in no group is left alone and
/// is not averaged. The error text names what is wrong: a name given to two parameters, or the
/// place of a parameter without a name.
tl::expected<std::vector<std::size_t>, std::string> match_parameters(
    std::span<const NamedIdentity> named, std::span<const std::vector<const void*>> groups);

/// "'conv1.weight' float32 [64, 3, 7, 7]", with the strides after it where the tensor is not
/// row-major: a gradient travels in its parameter's memory order, which ranks must share.
std::string describe(const std::string& name, DataType type, const Shape& shape,
                     const std::vector<std::int64_t>& strides);

/// Index of the first line that differs or that one of them lacks.
std::optional<std::size_t> first_difference(std::span<const std::string> a,
                                            std::span<const std::string> b);

/// One text and back; lines hold no newline (describe() replaces those in names by '?').
std::string join_lines(std::span<const std::string> lines);
std::vector<std::string> split_lines(const std::string& text);

}  // namespace hora::internal
