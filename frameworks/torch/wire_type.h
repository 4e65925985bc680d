/// The type that a tensor travels in, and what the two passes over a bucket of gradients do besides
/// converting: packing (from autograd's memory into the bucket) and unpacking (from the bucket into
/// what `.grad` views). Pure: the same on every rank.
#pragma once

#include <hora/torch/compression.h>
#include <hora/types.h>

#include <limits>
#include <optional>
#include <string>

namespace hora::internal {

/// Empty: nothing.
inline std::string wrong_with(Compression compression) {
  if (compression == Compression::none || name_of(compression) != "none") return {};
  return "compression is " + std::to_string(static_cast<int>(compression)) +
         "; expected none, float16 or bfloat16";
}

/// `type` is a floating-point type.
inline DataType wire_type(Compression compression, DataType type) noexcept {
  if (compression == Compression::none) return type;
  const DataType wire =
      compression == Compression::float16 ? DataType::float16 : DataType::bfloat16;
  return size_of(type) > size_of(wire) ? wire : type;
}

/// A pass's work on each value.
struct GradientPass {
  double scale = 1.0;
  /// Values are checked, and one is noted that is NaN or of a magnitude above limit().
  bool checked = false;
  /// How many values at the limit may be added up and stay finite.
  int terms = 1;

  /// For values that are written as `type`.
  double limit(DataType type) const noexcept {
    const double largest = type == DataType::float16    ? 0x1.ffcp15
                           : type == DataType::bfloat16 ? 0x1.fep127
                           : type == DataType::float32  ? std::numeric_limits<float>::max()
                                                        : std::numeric_limits<double>::max();
    return largest / terms;
  }
  /// Values stay as they are.
  bool is_plain() const noexcept { return scale == 1.0 && !checked; }
  bool operator==(const GradientPass&) const = default;
};

struct GradientPasses {
  GradientPass pack;
  GradientPass unpack;
  bool operator==(const GradientPasses&) const = default;
};

/// `unscale`: what gradients are multiplied by since the loss was multiplied by its inverse.
///
/// Packing does that where the wire type has the range for it. It happens before the sum, so a rank
/// that finds a bad value informs the others in the bucket itself. A sum of good values cannot
/// overflow unseen: packing takes a value for bad from a 2 * ranks-th of the largest finite one on,
/// far beyond every useful gradient; ranks of those add up to half of it, and rounding on the way
/// adds at most as much again, for an addend is either lost in rounding or counted at most twice.
///
/// In float16 unscaled gradients would vanish. They travel scaled, and unpacking multiplies and
/// checks: the average, which is the same on all ranks to the bit, and not finite where any term
/// or the sum was not.
inline GradientPasses gradient_passes(DataType wire, std::optional<double> unscale,
                                      int ranks) noexcept {
  if (!unscale) return {};
  if (wire == DataType::float16) return {{}, {*unscale, true, 1}};
  return {{*unscale, true, 2 * ranks}, {}};
}

}  // namespace hora::internal
