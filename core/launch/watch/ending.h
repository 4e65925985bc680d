/// How ranks ended, in words, and which of them ended the job.
/// Thread rule: pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/launch/control/messages.h"

namespace hora::launch {

/// Whether the rank has ended as it should: exit status 0, and, if it has called hora::init, with
/// hora shut down.
bool ended_well(const RankEnded& ended);

/// As a shell has it: the exit status, or 128 and the signal; 1 for a rank that left with 0 and
/// without shutting hora down.
int exit_status(const RankEnded& ended);

/// "rank 3 (host b, pid 4711) was killed by signal 9 (SIGKILL) 12.3 s after start, in epoch 2:
/// ...". `where` stands before its error and last words.
std::string ending_text(const RankEnded& ended, const std::string& host,
                        const std::string& where = {});

/// ending_text() of the first cause. An error that is another rank's comes before the ranks that
/// ended by it: "rank 3 did not come to tensor "g" within 60 s...; ranks 0-2 ended the job, 61.3 s
/// after its start".
std::string first_cause_text(std::span<const RankEnded> ended, const RankEnded& first,
                             const std::string& host, const std::string& where = {});

/// "signal 9 (SIGKILL)".
std::string signal_text(int number);
/// Of a process that has ended, as waitpid() says it: "ended with exit status 3".
std::string status_text(int status);

/// Whether it ended as what follows from another's end: its error is another rank's, it was asked
/// to end before it had one, what started it has ended, or it wrote to a peer that was gone
/// (SIGPIPE).
bool is_likely_consequence(const RankEnded& ended);

/// The index of the one that is the first cause; those that ended well are none. Before the likely
/// consequences come signals, then exit statuses (peers report errors of their own after one has
/// gone); among equals the earliest.
std::optional<std::size_t> first_cause(std::span<const RankEnded> ended);

/// The rank of which Open MPI says in its output that it has left without MPI_Init while others
/// called it; -1: it says so of none.
int rank_that_left_before_init(std::string_view output);

/// Returns "; MPI did not start: ..." where Open MPI's output says that MPI_Init has failed;
/// empty where it says nothing of that.
std::string failed_mpi_init(std::string_view output);

}  // namespace hora::launch
