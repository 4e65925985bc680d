// Rows of the option table: flags of horovodrun (0.28) beyond those whose spelling hora shares.
#include "core/launch/options/option_table.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

/// A whole number with a unit that the setting's parser knows.
Convert in_unit(std::string unit) {
  return [unit](std::string_view text) -> tl::expected<std::string, std::string> {
    constexpr int kMost = 65536;
    const auto number = parse_integer(text, 0, kMost);
    if (!number) return Unexpected(number.error());
    return std::to_string(*number) + unit;
  };
}

/// --stall-check and --no-stall-check.
Applied set_stall_check(LaunchOptions& options, std::string_view value) {
  if (value == "on") return {};
  if (value != "off") return Unexpected("expected on or off");
  return set_setting(options, "HORA_STALL_WARNING", "0");
}

Applied add_binding_args(LaunchOptions& options, std::string_view text) {
  auto words = split_words(text);
  if (!words) return Unexpected(words.error());
  options.binding = Binding::none;
  options.mpi_args.insert(options.mpi_args.end(), words->begin(), words->end());
  return {};
}

OptionRow as_toggle(OptionRow row) {
  row.kind = OptionKind::toggle;
  return row;
}

}  // namespace

std::vector<OptionRow> horovod_rows() {
  const std::string elastic =
      "elastic jobs are not supported: give the number of ranks by -np, and the hosts by -H";
  const std::string no_autotune = "there is no autotuning";
  const std::string no_stamps = "lines of output have no time stamps";
  std::vector<OptionRow> rows = {
      translated("fusion-threshold-mb", {}, "MB", "As --fusion-threshold, in MiB.",
                 "HORA_FUSION_THRESHOLD", into_setting("HORA_FUSION_THRESHOLD", in_unit("MiB"))),
      translated("stall-check-warning-time-seconds", {}, "SECONDS", "As --stall-warning.",
                 "HORA_STALL_WARNING", into_setting("HORA_STALL_WARNING", in_unit("s"))),
      translated("stall-check-shutdown-time-seconds", {}, "SECONDS", "As --timeout.",
                 "HORA_TIMEOUT", into_setting("HORA_TIMEOUT", in_unit("s"))),
      as_toggle(translated("stall-check", {}, "", "As --stall-warning 0, where it is off.",
                           "HORA_STALL_WARNING", set_stall_check)),
      translated("binding-args", {}, "\"ARGS\"",
                 "Arguments of mpirun that bind ranks to cores, in place of --binding.", "binding",
                 add_binding_args),

      ignored("disable-cache", {}, "", ""),  // all checks run each time
      ignored("mpi", {}, "", ""),
      ignored("gloo", {}, "", "all jobs run on MPI"),
      ignored("jsrun", {}, "", "jobs are started by mpirun"),
      ignored("cycle-time-ms", {}, "MS", "there are no cycles: tensors that are ready travel"),
      as_toggle(ignored("hierarchical-allreduce", {}, "",
                        "allreduces are always hierarchical; see --cross-algorithm")),
      as_toggle(ignored("hierarchical-allgather", {}, "", "allgathers are always hierarchical")),
      as_toggle(ignored("autotune", {}, "", no_autotune)),
      ignored("autotune-log-file", {}, "FILE", no_autotune),
      ignored("autotune-warmup-samples", {}, "N", no_autotune),
      ignored("autotune-steps-per-sample", {}, "N", no_autotune),
      ignored("autotune-bayes-opt-max-samples", {}, "N", no_autotune),
      ignored("autotune-gaussian-process-noise", {}, "X", no_autotune),
      as_toggle(ignored("timeline-mark-cycles", {}, "", "there are no cycles to mark")),
      as_toggle(ignored("mpi-threads-disable", {}, "", "MPI is used from several threads")),
      ignored("num-nccl-streams", {}, "N", "the number of NCCL's streams is fixed"),
      ignored("thread-affinity", {"ccl-bgt-affinity", "mlsl-bgt-affinity"}, "N",
              "hora's threads are bound with their rank: --binding"),
      ignored("gloo-timeout-seconds", {}, "SECONDS", "the limit of a collective is --timeout"),
      ignored("prefix-timestamp", {"prefix-output-with-timestamp"}, "", no_stamps),
      as_toggle(ignored("log-with-timestamp", {}, "", "")),
      ignored("log-without-timestamp", {}, "", ""),
      as_toggle(ignored("log-hide-timestamp", {}, "", "")),

      refused(
          "tcp", {}, "",
          "say it to the MPI, for example --mpi-args \"--mca pml ob1 --mca btl self,vader,tcp\" "
          "to Open MPI 4"),
      refused("host-discovery-script", {}, "FILE", elastic),
      refused("min-np", {"min-num-proc"}, "N", elastic),
      refused("max-np", {"max-num-proc"}, "N", elastic),
      refused("slots-per-host", {}, "N", "write the slots with the hosts: -H a:2,b:2"),
      refused("elastic-timeout", {}, "SECONDS", elastic),
      refused("reset-limit", {}, "N", elastic),
  };
  OptionRow cooldown = refused("blacklist-cooldown-range", {}, "LEAST MOST", elastic);
  cooldown.kind = OptionKind::pair;
  rows.push_back(std::move(cooldown));
  return rows;
}

}  // namespace hora::launch
