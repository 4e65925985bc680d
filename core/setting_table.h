/// The table of settings: one row is all that hora knows about one HORA_* variable. Its
/// documentation is the first paragraph of the field's in settings.h, word for word
/// (settings_documentation_test). Included by settings.cpp only.
#pragma once

#include <hora/settings.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/flight/flight_recorder.h"
#include "core/foreign_settings.h"
#include "core/trace/timeline_file.h"

namespace hora::internal::setting_table {

struct Suffix {
  std::string_view name;
  std::int64_t factor;
};

// Of several suffixes that fit, the first one is written.
inline constexpr Suffix kNoSuffix[] = {{"", 1}};
inline constexpr Suffix kSizeSuffixes[] = {
    {"GiB", 1 << 30}, {"MiB", 1 << 20},   {"KiB", 1 << 10}, {"G", 1 << 30}, {"M", 1 << 20},
    {"K", 1 << 10},   {"GB", 1000000000}, {"MB", 1000000},  {"KB", 1000},   {"", 1}};
inline constexpr Suffix kMicrosecondSuffixes[] = {{"s", 1000000}, {"ms", 1000}, {"us", 1}, {"", 1}};
inline constexpr Suffix kSecondSuffixes[] = {{"s", 1000}, {"ms", 1}, {"", 1000}};

struct Unit {
  std::string_view name;
  std::span<const Suffix> suffixes;
  std::string_view note;
};

inline constexpr Unit kCount{"a whole number", kNoSuffix, ""};
inline constexpr Unit kBytes{
    "bytes", kSizeSuffixes,
    ", optionally with a suffix: K, M, G, KiB, MiB, GiB (powers of 1024), KB, MB "
    "or GB (powers of 1000)"};
inline constexpr Unit kMicroseconds{"microseconds", kMicrosecondSuffixes,
                                    ", optionally with a suffix: us, ms or s"};
inline constexpr Unit kSeconds{"seconds", kSecondSuffixes, ", optionally with a suffix: ms or s"};

/// What each choice is called. No default: the compiler warns of an enumerator without a name.
constexpr std::string_view choice_name(CrossAlgorithm algorithm) {
  switch (algorithm) {
    case CrossAlgorithm::automatic:
      return "automatic";
    case CrossAlgorithm::direct:
      return "direct";
    case CrossAlgorithm::ring:
      return "ring";
  }
  return {};
}
constexpr std::string_view choice_name(CudaAwareMpi use) {
  switch (use) {
    case CudaAwareMpi::automatic:
      return "auto";
    case CudaAwareMpi::on:
      return "on";
    case CudaAwareMpi::off:
      return "off";
  }
  return {};
}
constexpr std::string_view choice_name(GpuNetwork network) {
  switch (network) {
    case GpuNetwork::automatic:
      return "auto";
    case GpuNetwork::mpi:
      return "mpi";
    case GpuNetwork::nccl:
      return "nccl";
  }
  return {};
}
constexpr std::string_view choice_name(TensorArenaUse use) {
  switch (use) {
    case TensorArenaUse::automatic:
      return "auto";
    case TensorArenaUse::on:
      return "on";
    case TensorArenaUse::off:
      return "off";
  }
  return {};
}
constexpr std::string_view choice_name(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      return "error";
    case LogLevel::off:
      return "off";
  }
  return {};
}

/// The names of all enumerators, by their numbers, which count from 0 without a gap.
template <class E>
inline constexpr auto kChoices = [] {
  constexpr std::size_t count = [] {
    std::size_t named = 0;
    while (!choice_name(static_cast<E>(named)).empty()) ++named;
    return named;
  }();
  std::array<std::string_view, count> names;
  for (std::size_t i = 0; i < count; ++i) names[i] = choice_name(static_cast<E>(i));
  return names;
}();
inline constexpr std::string_view kSwitch[] = {"off", "on"};

/// A field of Settings as a number: its value, count of its duration unit, or index of its choice.
template <auto Member>
std::int64_t get(const Settings& settings) {
  if constexpr (requires { (settings.*Member).count(); }) {
    return static_cast<std::int64_t>((settings.*Member).count());
  } else {
    return static_cast<std::int64_t>(settings.*Member);
  }
}

template <auto Member>
void set(Settings& settings, std::int64_t value) {
  using Field = std::remove_cvref_t<decltype(settings.*Member)>;
  settings.*Member = static_cast<Field>(value);
}

struct Accessors {
  std::int64_t (*get)(const Settings&);
  void (*set)(Settings&, std::int64_t);
};
template <auto Member>
inline constexpr Accessors kField{get<Member>, set<Member>};

/// A setting that is a text; empty stands for "off".
struct Text {
  std::string Settings::*field = nullptr;
  std::string_view allowed = {};  ///< beside "off"
  /// What is wrong with a text; empty where nothing is.
  std::string (*wrong)(std::string_view) = nullptr;
};

struct Row {
  std::string_view variable;
  std::string_view documentation;
  Accessors field;
  std::span<const std::string_view> choices;  ///< empty: a number, described by what follows
  const Unit* unit = nullptr;
  std::int64_t least = 0;
  std::int64_t most = 0;
  bool or_zero = false;  ///< below `least`
  Text text = {};        ///< its field is set where the setting is no number
};

inline std::string wrong_with_tuning(std::string_view text) {
  if (text == "on") return {};
  if (text.find('%') != text.npos) return "% means nothing here: rank 0 alone has the file";
  return wrong_with_timeline_path(text);
}

inline constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;

inline constexpr Row kRows[] = {
    {"HORA_RANKS_PER_NODE",
     "Splits each host into virtual nodes of this many ranks, to try the path of several nodes on "
     "one host; 0: all ranks of a host are one node.",
     kField<&Settings::ranks_per_node>,
     {},
     &kCount,
     0,
     65536},
    {"HORA_FUSION_THRESHOLD",
     "Tensors that became ready together travel as one message up to this size; 0: each one alone.",
     kField<&Settings::fusion_threshold>,
     {},
     &kBytes,
     0,
     64 * kGiB},
    {"HORA_BUCKET_SIZE",
     "Gradients are gathered into buckets of about this size, each averaged as soon as it is full; "
     "0: chosen automatically (4MiB in one node on CPU, 25MiB with a network or a GPU).",
     kField<&Settings::bucket_size>,
     {},
     &kBytes,
     0,
     64 * kGiB},
    {.variable = "HORA_TUNING",
     .documentation =
         "Where HORA_BUCKET_SIZE is 0: whether an optimizer's first 30 steps try other sizes of "
         "buckets, and to do without its compression, and keep what makes steps clearly shorter: "
         "on, or the path of a file, from which rank 0 takes what was found before for the same "
         "model and ranks, and to which it adds what it finds. Without compression the bits are "
         "others, so that runs of a compressed training have the same only by a file.",
     .field = {},
     .choices = {},
     .text = {&Settings::tuning, "on, or the path of a file", wrong_with_tuning}},
    {"HORA_CHUNK_SIZE",
     "Larger messages are cut into chunks of this size, so that the work inside the nodes overlaps "
     "with the transfers between them; 0: chosen automatically (1MiB up to 32 nodes, above that "
     "32KiB for each node, on GPUs no less than 2MiB for each rank of a node, at most 32MiB; of "
     "broadcasts 512KiB).",
     kField<&Settings::chunk_size>,
     {},
     &kBytes,
     4 * kKiB,
     kGiB,
     true},
    {"HORA_MESSAGE_SIZE",
     "MPI gets data for other nodes in messages of this size at most. TCP sends short ones at "
     "once; long ones MPI announces first, and waits for an answer behind the data that are under "
     "way. 0: chosen automatically (60KiB between hosts of which none has an active RDMA port, "
     "else unlimited).",
     kField<&Settings::message_size>,
     {},
     &kBytes,
     4 * kKiB,
     kGiB,
     true},
    {"HORA_SMALL_MESSAGE",
     "Up to this size each node sends its part to all others in the fewest steps (dissemination), "
     "and all of them sum it in node order; above it HORA_CROSS_ALGORITHM holds; 0: never.",
     kField<&Settings::small_message>,
     {},
     &kBytes,
     0,
     64 * kMiB},
    {"HORA_CROSS_ALGORITHM",
     "How nodes add up their parts: direct (each part is sent to its owner), ring (each node talks "
     "to two others only, for many nodes), or automatic (direct); the results are the same.",
     kField<&Settings::cross_algorithm>, kChoices<CrossAlgorithm>},
    {"HORA_ID_CAPACITY",
     "Number of tensor names that are remembered, so that their later collectives need no new "
     "agreement on shape and type; the least recently used name beyond it is forgotten.",
     kField<&Settings::id_capacity>,
     {},
     &kCount,
     16,
     65536},
    {"HORA_SPIN",
     "How long a waiting thread polls before it sleeps; longer answers faster and burns more CPU.",
     kField<&Settings::spin>,
     {},
     &kMicroseconds,
     0,
     1000000},
    {"HORA_STALL_WARNING",
     "A tensor that some ranks have submitted and others have not for this long is reported, with "
     "the ranks that lack it and what is known of them; likewise one that all have submitted and "
     "some do not finish, and ranks that have not called hora::init, join() or shutdown() while "
     "others wait there; 0: never.",
     kField<&Settings::stall_warning>,
     {},
     &kSeconds,
     0,
     86400000},
    {"HORA_TIMEOUT",
     "A collective that is not complete this long after a rank has submitted it, because some rank "
     "lacks it or does not go on, fails on every rank, naming those ranks, and so does everything "
     "after it, which ends the job; to be raised where one rank works alone for longer (a "
     "validation, a checkpoint); a call can have a limit of its own (hora/collectives.h), join() "
     "and shutdown() have none, but a rank that is stopped (SIGSTOP) this long while others wait "
     "in "
     "shutdown() ends the job; 0: never.",
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
     "Keeps large freed blocks in the process, so that each step's gradients do not cause page "
     "faults anew (glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD).",
     kField<&Settings::malloc_tuning>, kSwitch},
    {"HORA_TENSOR_ARENA",
     "Whether LibTorch's CPU tensors from 64KiB up lie in memory that the ranks of a node share, "
     "so "
     "that gradients and others are averaged where they lie: auto (where several ranks of a node "
     "compute on the CPU), on (always), or off (they are copied).",
     kField<&Settings::tensor_arena>, kChoices<TensorArenaUse>},
    {"HORA_TENSOR_ARENA_LIMIT",
     "The most memory that a rank gives its tensors in that way, and no more than the machine has "
     "left; tensors beyond it lie elsewhere and are copied; 0: half of the machine's memory, "
     "divided among the ranks of the node.",
     kField<&Settings::tensor_arena_limit>,
     {},
     &kBytes,
     0,
     1024 * kGiB},
    {"HORA_CUDA",
     "Whether tensors on GPUs can be averaged, where the build and every rank's machine have CUDA; "
     "off spares each rank the GPU memory that this takes.",
     kField<&Settings::cuda>, kSwitch},
    {"HORA_GPU_NETWORK",
     "What carries collectives on GPUs between nodes: mpi (NCCL in the node, MPI and the CPU's "
     "sums "
     "between nodes), nccl (one NCCL communicator over all ranks, whose sums depend on NCCL), or "
     "auto (nccl where NCCL finds a network better than sockets on every rank, else mpi).",
     kField<&Settings::gpu_network>, kChoices<GpuNetwork>},
    {"HORA_NCCL_CTAS",
     "The most thread blocks of each of NCCL's kernels, each of which takes a multiprocessor of "
     "the "
     "GPU from backward while it runs; 0: as NCCL chooses (NCCL_MAX_CTAS holds where it is set).",
     kField<&Settings::nccl_ctas>,
     {},
     &kCount,
     0,
     64},
    {"HORA_NCCL_WINDOWS",
     "Whether buffers on GPUs, those of an optimizer's buckets among them, become windows of "
     "NCCL's "
     "symmetric memory, where its collectives are faster and take fewer of a GPU's "
     "multiprocessors: in jobs of one node, with NCCL 2.27 or newer; such a buffer that is given "
     "back is freed with a later collective on another one, or at the end.",
     kField<&Settings::nccl_windows>, kSwitch},
    {"HORA_CUDA_AWARE_MPI",
     "Whether what travels between nodes goes from GPU memory straight into MPI, or through pinned "
     "host memory: auto (straight where every rank's MPI says that it takes GPU memory), on (also "
     "where MPI says no or nothing; one that really cannot then crashes), or off.",
     kField<&Settings::cuda_aware_mpi>, kChoices<CudaAwareMpi>},
    {"HORA_DEVICE_TIMEOUT",
     "A collective that is under way on the GPU for longer than this fails, and so does everything "
     "after it; 0: never.",
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
     .documentation =
         "Writes a timeline of all collectives from init to shutdown, for Perfetto or "
         "chrome://tracing, one file a rank: %r in the path stands for the rank, which otherwise "
         "is put before the extension (see hora/timeline.h).",
     .field = {},
     .choices = {},
     .text = {&Settings::timeline, "the path of a file", wrong_with_timeline_path}},
    {.variable = "HORA_RECORD_DIRECTORY",
     .documentation =
         "Where each rank that fails writes what it did last (rank 3: hora-record.3.json, mode "
         "0600), for `horarun --diagnose`; the folder is made where it is missing.",
     .field = {},
     .choices = {},
     .text = {&Settings::record_directory, "the path of a folder", wrong_with_record_directory}},
    {"HORA_LOG_LEVEL", "The least severe message that is printed.", kField<&Settings::log_level>,
     kChoices<LogLevel>},
    {.variable = "HORA_ALLOW_UNKNOWN",
     .documentation =
         "Variables whose names begin with HORA_ and that are not meant for hora; others that it "
         "does not know are errors. HORA_ROOT, HORA_HOME, HORA_DIR, HORA_VERSION and the like, "
         "which module systems set for every package, are passed over without it.",
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
