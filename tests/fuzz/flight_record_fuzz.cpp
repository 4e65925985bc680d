// Any file of a rank's record: refused with a reason, or a record that is the same when it is
// written out, and that a diagnosis can be made of; and any memory of one.
#include <cstring>

#include "core/flight/flight_recorder.h"
#include "core/launch/diagnose/diagnosis.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

namespace {

using namespace hora::internal;

void read_as_file(std::string_view text) {
  const auto record = record_from_json(text);
  if (!has_value_or_reason(record)) return;
  const auto again = record_from_json(to_json(*record));
  HORA_REQUIRE(again && *again == *record);
  hora::launch::JobRecords job{.size = 3, .of_rank = {}, .problems = {}};
  // The same on one host, and on another.
  for (int rank = 0; rank < 2; ++rank) {
    FlightRecord of_rank = *record;
    of_rank.rank = rank;
    of_rank.node = rank;
    job.of_rank.emplace(rank, of_rank);
  }
  HORA_REQUIRE(!hora::launch::to_text(hora::launch::diagnose(job)).empty());
}

/// Damaged by (place, word), as a rank may leave it.
void read_as_memory(const std::uint8_t* data, std::size_t size) {
  const auto memory = RecordMemory::anonymous();
  HORA_REQUIRE(memory);
  auto* const words = reinterpret_cast<std::byte*>(&memory->layout());
  memory->layout().header.next.store(3);
  hora::internal::test::FuzzInput input(data, size);
  while (!input.empty()) {
    const std::size_t at = input.take<std::uint32_t>() % (kRecordBytes / sizeof(std::uint64_t));
    const auto word = input.take<std::uint64_t>();
    std::memcpy(words + at * sizeof word, &word, sizeof word);
  }
  read_arrivals(memory->layout().arrivals);
  const auto record = read_record(memory->layout(), {});
  if (record) HORA_REQUIRE(record_from_json(to_json(*record)).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_as_file({reinterpret_cast<const char*>(data), size});
  read_as_memory(data, size);
  return 0;
}
