// A node's shared page, damaged anywhere: readers stay inside of it and terminate.
#include <hora/error.h>

#include "core/messages/messages.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/require.h"

namespace {

constexpr int kMostReads = 64;

hora::internal::ControlBlockShape small_shape() {
  return {.local_size = 2,
          .id_capacity = 16,
          .single_node = false,
          .mailbox_bytes = 128,
          .control_bytes = 512};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hora;
  using namespace hora::internal;
  const ControlBlockShape shape = small_shape();
  const MessageLimits limits{.id_capacity = 16, .ranks = {0, 1}, .locations = 2};
  test::SharedControlBlock control_block(shape);
  const auto control = encode(Decision{.run = {1}, .departed = {1}});
  HORA_REQUIRE(control_block[0].push_control(control));
  control_block[0].push_run(std::vector<Id>{3, 4});
  HORA_REQUIRE(control_block[1].push_mail(std::vector<std::byte>(20)));

  test::FuzzInput input(data, size);
  const std::size_t words = control_block.memory().size() / sizeof(std::uint64_t);
  while (!input.empty()) {
    const std::size_t at = input.take<std::uint32_t>() % words;
    const auto word = input.take<std::uint64_t>();
    std::memcpy(control_block.memory().data() + at * sizeof word, &word, sizeof word);
  }
  try {
    for (int i = 0; i < kMostReads; ++i) {
      const auto batch = test::next_batch(control_block[1]);
      if (!batch) break;
      HORA_REQUIRE(batch->payload.size() <= shape.control_bytes);
      if (batch->kind == LogBatch::Kind::control) {
        static_cast<void>(decode(batch->payload, &limits));
      }
    }
    for (int i = 0; i < kMostReads; ++i) {
      const auto mail = control_block[0].pop_mail(1);
      if (!mail) break;
      HORA_REQUIRE(mail->size() <= shape.mailbox_bytes);
      static_cast<void>(decode(*mail, &limits));
    }
    for (int i = 0; i < kMostReads && control_block[0].pop_arrival(); ++i) {
    }
  } catch (const Error& error) {
    HORA_REQUIRE(error.code() == ErrorCode::transport);
  }
  return 0;
}
