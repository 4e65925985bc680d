/// The kernels themselves. Included once by each kernels_<instruction set>.cpp, which defines
/// HORA_KERNEL_TABLE and HORA_INSTRUCTION_SET. Everything but the table has internal linkage, and
/// nothing of the standard library is called (see kernel_table.h).
#include "ops/local/adasum_kernels.h"
#include "ops/local/convert_kernels.h"
#include "ops/local/element.h"
#include "ops/local/kernel_table.h"
#include "ops/local/reduce_kernels.h"
#include "ops/local/stream_copy.h"

namespace hora::internal {
namespace {

using Float16 = Half<Float16Conversion>;
using Bfloat16 = Half<Bfloat16Conversion>;
using Float32 = Plain<float, true>;
using Float64 = Plain<double, true>;

}  // namespace

// In the order of DataType. No code of its own for sums of 16-bit integers, which gradients never
// are.
constinit const KernelTable HORA_KERNEL_TABLE = {
    HORA_INSTRUCTION_SET,
    {kFloating<Float16>, kFloating<Bfloat16>, kFloating<Float32>, kFloating<Float64>,
     integer<std::int32_t, std::uint32_t>(plain_sum<Plain<std::uint32_t, false>>),
     integer<std::int64_t, std::uint64_t>(plain_sum<Plain<std::uint64_t, false>>),
     integer<std::uint8_t, std::uint8_t>(plain_sum<Plain<std::uint8_t, false>>),
     integer<std::int8_t, std::uint8_t>(plain_sum<Plain<std::uint8_t, false>>),
     integer<std::int16_t, std::uint16_t>(reduce_blocks<Plain<std::uint16_t, false>, Sum>),
     kBoolean,
     integer<std::uint16_t, std::uint16_t>(reduce_blocks<Plain<std::uint16_t, false>, Sum>),
     integer<std::uint32_t, std::uint32_t>(plain_sum<Plain<std::uint32_t, false>>),
     integer<std::uint64_t, std::uint64_t>(plain_sum<Plain<std::uint64_t, false>>)},
    {kAdasum<Float16>, kAdasum<Bfloat16>, kAdasum<Float32>, kAdasum<Float64>},
    {sum_of_squares_of<Float16>, sum_of_squares_of<Bfloat16>, sum_of_squares_of<Float32>,
     sum_of_squares_of<Float64>},
    stream_copy,
    {{convert<Float16, Float16>, convert<Float16, Bfloat16>, convert<Float16, Float32>, nullptr},
     {convert<Bfloat16, Float16>, convert<Bfloat16, Bfloat16>, convert<Bfloat16, Float32>, nullptr},
     {convert<Float32, Float16>, convert<Float32, Bfloat16>, convert<Float32, Float32>, nullptr},
     {nullptr, nullptr, nullptr, convert<Float64, Float64>}}};

}  // namespace hora::internal
