/// Checks users' requests and converts them to the engine's form.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>

#include <cstddef>
#include <string>

#include "core/engine/engine.h"
#include "core/engine/operations.h"

namespace hora::internal {

/// Throws Error(invalid_argument) for a name that is too long, or has a zero byte.
void check_name(const std::string& name);

/// All throw the errors that collectives.h lists for submitting calls.
Request request(const Context& context, const TensorView& tensor, const AllreduceOptions& options);
Request request(const Context& context, const TensorView& tensor, const BroadcastOptions& options);
Request request(const Context& context, const BarrierOptions& options);
Request request(const Context& context, const ConstTensorView& tensor,
                const AllgatherOptions& options);
Request request(const Context& context, const ConstTensorView& tensor,
                const AlltoallOptions& options);
Request request(const Context& context, const ConstTensorView& tensor,
                const ReduceScatterOptions& options);

/// Of an exchange: what is wrong with `output` as the memory of its result, as far as this rank
/// knows. Throws Error(invalid_argument).
void check_output(const Context& context, const Request& request, const TensorView& output,
                  ProcessSet set);

/// What is wrong with an output of another length than the result.
std::string output_text(std::size_t output_bytes, std::size_t result_bytes, DataType type);

/// Throws Error(invalid_argument) "<what> ..." where `device`, which is not Device{}, is not this
/// rank's.
void check_device(const EngineParts& parts, const Device& device, const std::string& what,
                  const std::string& tensor = {});

}  // namespace hora::internal
