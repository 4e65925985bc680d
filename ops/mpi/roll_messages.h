/// The messages with which ranks call the roll, and how they are read.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hora {

inline constexpr int kComeTag = 32741;  ///< to the lowest rank of a list
inline constexpr int kWordTag = 32742;  ///< an answer to one that has arrived

using RollBytes = std::vector<std::byte>;

enum class RollKind : std::int32_t { come, contradiction, go, mismatch, missing };

/// Of every message. `serial` is the sender's of a call of the roll; answers have that of the rank
/// that they go to, so that none is taken for another call's.
struct RollHead {
  std::uint64_t serial = 0;
  RollKind kind = RollKind::come;
  std::int32_t about = -1;         ///< of a contradiction: the other rank
  std::uint64_t about_serial = 0;  ///< and its serial
};

struct RollMessage {
  int source = -1;
  RollHead head;
  RollBytes body;  ///< of `come` the list, else a text
};

RollBytes bytes_of(const std::string& text);
RollBytes bytes_of(const std::vector<int>& ranks);
std::string text_of(const RollBytes& bytes);
/// Those that are ranks of `comm`.
std::vector<int> ranks_of(const RollBytes& bytes, MPI_Comm comm);
RollBytes joined(const RollHead& head, const RollBytes& body);

/// The next one that has arrived; does not wait. Throws Error(transport).
std::optional<RollMessage> next_message(MPI_Comm comm, int source, int tag);

}  // namespace hora
