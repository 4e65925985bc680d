/// The table of settings: one row is all that hora knows about one HORA_* variable. Its
/// documentation is the first paragraph of the field's in settings.h, word for word
/// (settings_documentation_test). Included by settings.cpp only.
#pragma once

#include <hora/settings.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/settings.h"
#include "core/flight/flight_recorder.h"
#include "core/trace/trace.h"

namespace hora::internal::setting_table {

inline std::string wrong_with_tuning(std::string_view text) {
  if (text == "on") return {};
  if (text.find('%') != text.npos) return "% means nothing here: rank 0 alone has the file";
  return wrong_with_timeline_path(text);
}

inline constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

inline constexpr Row kRows[] = {
    {"HORA_RANKS_PER_NODE",
     "Splits each host into virtual nodes of this many ranks, to try the path of several nodes "
     "on one host; 0: a host is one node.",
     kField<&Settings::ranks_per_node>,
     {},
     &kCount,
     0,
     65536},
    {"HORA_RANKS_PER_MEMORY_NODE",
     "In one node, sums from 1MiB up go from one memory (NUMA) node to the next, by so many "
     "consecutive ranks each, with the same results. 0: as the system says, where ranks are "
     "bound evenly to one each; 1: never.",
     kField<&Settings::ranks_per_memory_node>,
     {},
     &kCount,
     0,
     65536},
    {"HORA_FUSION_THRESHOLD",
     "Tensors that became ready together travel as one message up to this size; 0: each one "
     "alone.",
     kField<&Settings::fusion_threshold>,
     {},
     &kBytes,
     0,
     64 * kGiB},
    {"HORA_BUCKET_SIZE",
     "Gradients are averaged in buckets of about this size, each as soon as it is full; 0: "
     "chosen automatically (4MiB in one node on CPU, 25MiB with a network or a GPU).",
     kField<&Settings::bucket_size>,
     {},
     &kBytes,
     0,
     64 * kGiB},
    {.variable = "HORA_TUNING",
     .documentation =
         "Whether an optimizer's first 30 steps try other bucket sizes (where HORA_BUCKET_SIZE is "
         "0), and no compression, and keep what is clearly faster: on, or the path of a file where "
         "rank 0 keeps what was found for a model and ranks. Without compression the bits are "
         "others: only a file makes them the same in every run.",
     .field = {},
     .choices = {},
     .text = {&Settings::tuning, "on, or the path of a file", wrong_with_tuning}},
    {"HORA_CHUNK_SIZE",
     "Larger messages are cut into chunks of this size, so that work in the nodes overlaps with "
     "transfers between them; 0: chosen automatically (1MiB up to 32 nodes, above that 32KiB a "
     "node, on GPUs at least 2MiB a rank of a node, at most 32MiB; of broadcasts 512KiB).",
     kField<&Settings::chunk_size>,
     {},
     &kBytes,
     4 * kKiB,
     kGiB,
     true},
    {"HORA_MESSAGE_SIZE",
     "Largest message that MPI gets for other nodes: over TCP longer ones wait for an answer "
     "behind the data that are under way. 0: chosen automatically (60KiB between hosts of which "
     "none has an active RDMA port, else unlimited).",
     kField<&Settings::message_size>,
     {},
     &kBytes,
     4 * kKiB,
     kGiB,
     true},
    {"HORA_SMALL_MESSAGE",
     "Up to this size each node sends its part to all others in the fewest steps "
     "(dissemination); above it HORA_CROSS_ALGORITHM holds; 0: never.",
     kField<&Settings::small_message>,
     {},
     &kBytes,
     0,
     64 * kMiB},
    {"HORA_CROSS_ALGORITHM",
     "How nodes add up their parts, with the same results: direct (each part is sent to its "
     "owner), ring (each node talks to two others only, for many nodes), or automatic (direct).",
     kField<&Settings::cross_algorithm>, kChoices<CrossAlgorithm>},
    {"HORA_ID_CAPACITY",
     "Number of tensor names, the last used ones, whose later collectives need no new agreement "
     "on shape and type.",
     kField<&Settings::id_capacity>,
     {},
     &kCount,
     16,
     65536},
    {"HORA_SPIN",
     "How long a waiting thread polls before it sleeps; longer answers faster and burns more "
     "CPU.",
     kField<&Settings::spin>,
     {},
     &kMicroseconds,
     0,
     1000000},
    {"HORA_STALL_WARNING",
     "A tensor that some ranks have submitted and others have not for this long, or that some do "
     "not finish, is reported with those ranks and what is known of them; so are ranks for which "
     "others wait in hora::init, join() or shutdown(); 0: never.",
     kField<&Settings::stall_warning>,
     {},
     &kSeconds,
     0,
     86400000},
    {"HORA_TIMEOUT",
     "A collective that is not complete this long after a rank has submitted it fails on every "
     "rank, naming the ranks that lack it or do not go on, and ends the job. Raise it where one "
     "rank works alone for longer (a validation, a checkpoint), or give the call its own limit "
     "(hora/collectives.h). join() and shutdown() have none, but a rank that is stopped "
     "(SIGSTOP) this long while others wait in shutdown() ends the job; 0: never.",
     kField<&Settings::timeout>,
     {},
     &kSeconds,
     0,
     86400000},
    {"HORA_INIT_TIMEOUT",
     "hora::init fails where some ranks have not called it for this long, or have left it; 0: it "
     "waits without limit.",
     kField<&Settings::init_timeout>,
     {},
     &kSeconds,
     0,
     86400000},
    {"HORA_MALLOC_TUNING",
     "Keeps large freed blocks in the process, so that gradients cause no new page faults in "
     "each step (glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD).",
     kField<&Settings::malloc_tuning>, kSwitch},
    {"HORA_TENSOR_ARENA",
     "Whether LibTorch's CPU tensors from 64KiB up lie in memory that the node's ranks share, "
     "and are averaged where they lie: auto (where several ranks of a node compute on the CPU), "
     "on, or off (they are copied).",
     kField<&Settings::tensor_arena>, kChoices<TensorArenaUse>},
    {"HORA_TENSOR_ARENA_LIMIT",
     "The most memory of a rank's tensor arena, at most what the machine has left; tensors "
     "beyond it are copied; 0: half of the machine's memory, divided among the node's ranks.",
     kField<&Settings::tensor_arena_limit>,
     {},
     &kBytes,
     0,
     1024 * kGiB},
    {"HORA_CUDA",
     "Whether tensors on GPUs can be averaged, where the build and every rank's machine have "
     "CUDA; off spares each rank the GPU memory that this takes.",
     kField<&Settings::cuda>, kSwitch},
    {"HORA_GPU_NETWORK",
     "What carries collectives on GPUs between nodes: mpi (NCCL in the node, MPI and the CPU's "
     "sums between), nccl (one NCCL communicator, with NCCL's sums), or auto (nccl where NCCL "
     "finds a network better than sockets on every rank, else mpi).",
     kField<&Settings::gpu_network>, kChoices<GpuNetwork>},
    {"HORA_NCCL_CTAS",
     "The most thread blocks, and so multiprocessors of the GPU, that each of NCCL's kernels "
     "takes from backward; 0: as NCCL chooses (or NCCL_MAX_CTAS says).",
     kField<&Settings::nccl_ctas>,
     {},
     &kCount,
     0,
     64},
    {"HORA_NCCL_WINDOWS",
     "Whether buffers on GPUs become windows of NCCL's symmetric memory, where its collectives "
     "are faster and take fewer multiprocessors: in jobs of one node, with NCCL 2.27 or newer. "
     "One that is given back is freed with a later collective on another, or at the end.",
     kField<&Settings::nccl_windows>, kSwitch},
    {"HORA_CUDA_AWARE_MPI",
     "Whether MPI gets GPU memory, or pinned host memory: auto (GPU memory where every rank's "
     "MPI says that it takes it), on (also where MPI says no or nothing; one that really cannot "
     "then crashes), or off.",
     kField<&Settings::cuda_aware_mpi>, kChoices<CudaAwareMpi>},
    {"HORA_DEVICE_TIMEOUT",
     "A collective that is under way on the GPU for longer than this fails, and so does "
     "everything after it; 0: never.",
     kField<&Settings::device_timeout>,
     {},
     &kSeconds,
     0,
     86400000},
    {"HORA_REPORT",
     "Whether rank 0 prints at shutdown which ranks came last to collectives, how often and how "
     "late.",
     kField<&Settings::report>, kSwitch},
    {.variable = "HORA_TIMELINE",
     .documentation = "Writes a timeline of all collectives for Perfetto or chrome://tracing, one "
                      "file a rank: %r "
                      "in the path is the rank, which otherwise is put before the extension (see "
                      "hora/timeline.h).",
     .field = {},
     .choices = {},
     .text = {&Settings::timeline, "the path of a file", wrong_with_timeline_path}},
    {.variable = "HORA_RECORD_DIRECTORY",
     .documentation =
         "Where each rank that fails writes what it did last (rank 3: hora-record.3.json, mode "
         "0600), for `horarun --diagnose`; made where it is missing.",
     .field = {},
     .choices = {},
     .text = {&Settings::record_directory, "the path of a folder", wrong_with_record_directory}},
    {"HORA_LOG_LEVEL", "The least severe message that is printed.", kField<&Settings::log_level>,
     kChoices<LogLevel>},
    {.variable = "HORA_ALLOW_UNKNOWN",
     .documentation =
         "Variables whose names begin with HORA_ and that are not meant for hora; others that it "
         "does not know are errors, but for HORA_ROOT, HORA_HOME, HORA_DIR, HORA_VERSION and the "
         "like, which module systems set for every package.",
     .field = {},
     .choices = {},
     .text = {&Settings::allow_unknown, "names that begin with HORA_, with commas between them",
              wrong_with_foreign_names}},
};

/// Converts to any field.
struct AnyField {
  template <class T>
  operator T() const;
};
template <std::size_t... I>
consteval bool has_as_many_fields(std::index_sequence<I...>) {
  return requires {
    Settings{(static_cast<void>(I), AnyField{})...};
  };
}
static_assert(has_as_many_fields(std::make_index_sequence<std::size(kRows)>()) &&
                  !has_as_many_fields(std::make_index_sequence<std::size(kRows) + 1>()),
              "each field of Settings has one row in kRows");

}  // namespace hora::internal::setting_table
