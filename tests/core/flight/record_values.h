/// Records for tests.
#pragma once

#include <chrono>
#include <string>

#include "core/flight/record_reader.h"
#include "core/flight/record_writer.h"

namespace hora::internal::test {

/// Memory of this process, or the test ends.
inline RecordMemory own_memory() {
  return RecordMemory::anonymous().value();
}

inline FlightRecord read(const RecordMemory& memory) {
  return read_record(memory.layout(), record_now()).value();
}

inline Signature signature_of(OperationKind kind, DataType type = DataType::float32,
                              ReduceOp op = ReduceOp::sum) {
  Signature signature;
  signature.kind = kind;
  signature.type = type;
  signature.op = op;
  return signature;
}

inline RecordTicket submit(const RecordWriter& writer, const std::string& name,
                           std::int64_t time = 1) {
  return writer.submitted(name, kWorld, signature_of(OperationKind::allreduce), 4, 2,
                          std::chrono::nanoseconds(time));
}

}  // namespace hora::internal::test
