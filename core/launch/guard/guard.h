/// The parent of one rank: starts its program, passes on its output and its signals, and says how
/// it ended. mpirun starts it in the program's place.
#pragma once

#include <span>
#include <string>

namespace hora::launch {

/// The variable that names the file that rank 0 reads on standard input, where it runs on
/// horarun's host: Open MPI 5.0.11 does not pass on the end of its own input.
inline constexpr char kInputVariable[] = "HORARUN_INPUT";

/// `arguments`: the way of binding (Binding), and the program with its arguments in one word
/// (encode_words()).
/// Until the program has ended; the exit status for this process: the program's, or 128 and the
/// signal that killed it. The rank ends with SIGKILL where its guard, the agent, or the process
/// that started the guard ends.
int run_guard(std::span<const std::string> arguments);

}  // namespace hora::launch
