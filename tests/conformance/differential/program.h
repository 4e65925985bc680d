/// Random programs of collectives, as values: equal for every rank that draws from the same seed.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hora::internal::test {

enum class Kind { allreduce, broadcast, barrier, allgather, alltoall, reduce_scatter };
inline constexpr Kind kKinds[] = {Kind::allreduce, Kind::broadcast, Kind::barrier,
                                  Kind::allgather, Kind::alltoall,  Kind::reduce_scatter};
const char* name_of(Kind kind);
constexpr bool is_reduction(Kind kind) {
  return kind == Kind::allreduce || kind == Kind::reduce_scatter;
}
/// Its result may go to memory of the caller's.
constexpr bool is_exchange(Kind kind) {
  return kind >= Kind::allgather;
}

/// In what one rank differs from the others.
enum class Oddness { type, shape, reduction };

struct Operation {
  Kind kind = Kind::allreduce;
  std::string name;     ///< empty: unnamed, then blocking
  std::size_t set = 0;  ///< index in Program::sets
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;  ///< world rank
  /// All extents but the first; one of allreduce and broadcast may have none at all (`is_scalar`).
  Shape row;
  bool is_scalar = false;
  /// The first extents. [place of the sender in the set][place of the receiver]: of an alltoall the
  /// splits; of all others [place][0], and of all but allgather these are equal.
  std::vector<std::vector<std::int64_t>> rows;
  bool blocking = false;
  int phase = 0;
  std::uint64_t values = 0;  ///< seed of the elements
  int odd_rank = -1;         ///< the world rank that disagrees: an error on every member; -1: none
  Oddness oddness = Oddness::type;

  /// Shape of the tensor that the rank at this place brings.
  Shape shape(std::size_t place) const;
  bool is_disputed() const { return odd_rank >= 0; }
  /// The operation that this rank submits.
  Operation submitted_by(int rank) const;
};

struct Program {
  std::uint64_t seed = 0;
  int ranks = 1;
  /// HORA_* variables and their values.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::vector<int>> sets;  ///< ascending world ranks; sets[0]: the world
  bool removes_sets = false;           ///< in the end
  int phases = 1;
  /// Ascending in phases. In a phase a name is used once in a set; in the next phase not at all.
  std::vector<Operation> operations;
};
Program draw_program(std::uint64_t seed, int ranks);

/// Every operation in every shape, by every reduction, from every root, on the world, the even and
/// the odd ranks, with new and with known names.
Program every_operation(DataType type, int ranks);

/// One rank's next step.
struct Step {
  enum class Action { start, wait, run };
  Action action = Action::run;
  std::size_t operation = 0;  ///< index in Program::operations
  bool operator==(const Step&) const = default;
};

/// In each phase: starts what does not block, in an order of this rank's own; runs what blocks, in
/// the program's order; waits for some of what it has started, in an order of its own, and at the
/// latest in the following phase.
///
/// Deadlock-free because, of all ranks that wait, one in the lowest phase makes progress: it waits
/// for an operation that does not block, which every rank that is in that phase or a later one has
/// started, or for one that blocks, which all its members reach, since all run these in one order.
std::vector<Step> schedule(const Program& program, int rank);

/// Index of the rank in the set; -1 where it is no member.
int place_in(const std::vector<int>& set, int rank);

// model.cpp: expected results, computed serially by each operation's definition.

/// A tensor: what a rank brings, or what it has in the end.
struct Contents {
  Shape shape;
  std::vector<std::byte> bytes;
  std::vector<std::int64_t> rows;  ///< as Result::rows(); empty of allreduce and broadcast
  bool operator==(const Contents&) const = default;
};

/// Small whole numbers: sums, products, averages and what scales make of them are exact in every
/// floating-point type; integers wrap.
Contents input_of(const Program& program, const Operation& operation, int rank);

/// A member's contents when the operation is complete.
Contents expected_of(const Program& program, const Operation& operation, int rank);

}  // namespace hora::internal::test
