// Flags of horovodrun (0.28), mpirun (Open MPI 4.1 and 5, MPICH) and torchrun (2.x) beyond those
// whose spelling hora shares: some mean the same as one of hora's, some change nothing, some are
// refused with what to use instead.
#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>

#include <filesystem>

#include "core/launch/options/flags.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

using Values = std::vector<std::string>;

/// A flag without which the job is the same.
struct Ignored {
  const char* names;
  const char* value;   ///< follows it; empty: nothing; "[]": on or off
  const char* notice;  ///< empty: none
};

constexpr char kBinding[] = "cores are shared out by --binding";
constexpr char kNoAutotune[] = "there is no autotuning";
constexpr char kNoStamps[] = "lines of output have no time stamps";
constexpr char kOutputFiles[] = "one file a rank is written by --output-filename FOLDER";

constexpr Ignored kIgnored[] = {
    // horovodrun
    {"disable-cache", "", ""},  // all checks run each time
    {"mpi", "", ""},
    {"gloo", "", "all jobs run on MPI"},
    {"jsrun", "", "jobs are started by mpirun"},
    {"cycle-time-ms", "MS", "there are no cycles: tensors that are ready travel"},
    {"hierarchical-allreduce", "[]", "allreduces are always hierarchical; see --cross-algorithm"},
    {"hierarchical-allgather", "[]", "allgathers are always hierarchical"},
    {"autotune", "[]", kNoAutotune},
    {"autotune-log-file", "FILE", kNoAutotune},
    {"autotune-warmup-samples", "N", kNoAutotune},
    {"autotune-steps-per-sample", "N", kNoAutotune},
    {"autotune-bayes-opt-max-samples", "N", kNoAutotune},
    {"autotune-gaussian-process-noise", "X", kNoAutotune},
    {"timeline-mark-cycles", "[]", "there are no cycles to mark"},
    {"mpi-threads-disable", "[]", "MPI is used from several threads"},
    {"num-nccl-streams", "N", "the number of NCCL's streams is fixed"},
    {"thread-affinity ccl-bgt-affinity mlsl-bgt-affinity", "N",
     "hora's threads are bound with their rank: --binding"},
    {"gloo-timeout-seconds", "SECONDS", "the limit of a collective is --timeout"},
    {"prefix-timestamp prefix-output-with-timestamp", "", kNoStamps},
    {"log-with-timestamp", "[]", ""},
    {"log-without-timestamp", "", ""},
    {"log-hide-timestamp", "[]", ""},
    // mpirun
    {"byslot", "", ""},
    {"nooversubscribe", "", ""},
    {"genvall envall", "", ""},
    {"report-bindings display-bindings", "", "the cores of ranks are always printed"},
    {"quiet q", "", "horarun prints little without --verbose"},
    {"timestamp-output", "", kNoStamps},
    {"merge-stderr-to-stdout", "",
     "each stream of a rank is one of horarun's: redirect them there, by 2>&1"},
    {"use-hwthread-cpus", "", kBinding},
    {"cpus-per-proc cpus-per-rank", "N", kBinding},
    {"bycore", "", "ranks are put host by host"},
    // torchrun
    {"rdzv-conf", "CONF", "the time limit of the start is --start-timeout"},
    {"standalone", "", ""},
    {"no-python", "", ""},
    {"use-env", "", ""},
    {"role", "NAME", ""},
    {"monitor-interval", "SECONDS", ""},
    {"start-method", "METHOD", ""},
    {"local-addr", "ADDRESS", "addresses are chosen by --network-interfaces"},
    {"redirects r", "SPEC", kOutputFiles},
    {"tee t", "SPEC", kOutputFiles},
    {"log-dir", "FOLDER", kOutputFiles},
    {"local-ranks-filter", "RANKS", "the output of ranks is chosen by --ranks"},
    {"numa-binding", "KIND", kBinding},
};

constexpr char kElastic[] =
    "elastic jobs are not supported: give the number of ranks by -np, and the hosts by -H";
constexpr char kInMpiArgs[] = "write it into --mpi-args, with --binding none";

/// Flags with what to use instead.
constexpr std::pair<const char*, const char*> kRefusedFlags[] = {
    // horovodrun
    {"tcp",
     "say it to the MPI, for example --mpi-args \"--mca pml ob1 --mca btl self,vader,tcp\" to Open "
     "MPI 4"},
    {"host-discovery-script", kElastic},
    {"min-np min-num-proc", kElastic},
    {"max-np max-num-proc", kElastic},
    {"slots-per-host", "write the slots with the hosts: -H a:2,b:2"},
    {"elastic-timeout", kElastic},
    {"reset-limit", kElastic},
    {"blacklist-cooldown-range", kElastic},
    // mpirun
    {"path", "name the program by its path, or add the folders to PATH"},
    {"c", "the number of ranks is -np"},
    {"bynode", "ranks are put host by host: -H a:2,b:2 says how many on each"},
    {"npersocket", "the number of ranks on a host is --nproc-per-node"},
    {"nolocal", "name the hosts by -H"},
    {"rankfile rf", kInMpiArgs},
    {"cpu-set cpu-list", "start horarun with these cores (taskset -c CORES)"},
    {"xterm", "show single ranks by --ranks"},
    {"app configfile", "a job has one program"},
    {"preload-binary s", "the program must be on all hosts"},
    {"preload-files", "the files must be on all hosts"},
    {"genvnone envnone", "name the variables that ranks need by -x"},
    {"launcher bootstrap rmk", kInMpiArgs},
    {"launcher-exec bootstrap-exec", kInMpiArgs},
    {"prepend-pattern", "host:rank is put before lines by --prefix-output"},
    // torchrun
    {"module m", "name the interpreter: horarun ... python -m MODULE"},
    {"run-path", "name the program"},
};

Takes taken_after(std::string_view value) {
  if (value.empty()) return Takes::nothing;
  return value == "[]" ? Takes::on_off : Takes::value;
}

/// --tune's files, which mpirun runs without where they are missing.
std::string absolute_paths(const std::string& list) {
  std::string files;
  for (const std::string_view file : split(list, ',')) {
    const auto content = read_input_file(std::string(file));
    if (!content) throw Refused{"the file " + in_quotes(file) + " " + content.error()};
    files += (files.empty() ? "" : ",") + std::filesystem::absolute(file).string();
  }
  return files;
}

void set_map_by(LaunchOptions& options, std::string_view text) {
  const auto parts = split(text, ':');
  std::size_t used = 1;
  if (parts.front() == "ppr" && parts.size() >= 3 && parts[2] == "node") {
    const auto number = parse_integer(parts[1], 1, kMostRanks);
    if (!number) throw Refused{"ppr: " + number.error()};
    options.ranks_per_host = *number;
    used = 3;
  } else if (!parts.front().empty() && parts.front() != "slot" && parts.front() != "core") {
    throw Refused{"ranks are put host by host: expected slot or ppr:N:node"};
  }
  for (const std::string_view modifier : std::span(parts).subspan(used)) {
    if (modifier == "OVERSUBSCRIBE" || modifier == "oversubscribe") {
      options.oversubscribe = true;
    } else if (modifier != "NOOVERSUBSCRIBE" && modifier != "nooversubscribe") {
      throw Refused{
          "expected OVERSUBSCRIBE or nothing after it: cores are shared out by --binding"};
    }
  }
}

}  // namespace

void Flags::add_horovods() {
  const auto in_unit = [this](const char* names, const char* help, std::string variable,
                              std::string unit) {
    add(Takes::value, names, "N", help, [=, this](const Values& values) {
      set_setting(variable, std::to_string(or_refuse(parse_integer(values[0], 0, 65536))) + unit);
    });
  };
  in_unit("fusion-threshold-mb =HORA_FUSION_THRESHOLD", "As --fusion-threshold, in MiB.",
          "HORA_FUSION_THRESHOLD", "MiB");
  in_unit("stall-check-warning-time-seconds =HORA_STALL_WARNING", "As --stall-warning.",
          "HORA_STALL_WARNING", "s");
  in_unit("stall-check-shutdown-time-seconds =HORA_TIMEOUT", "As --timeout.", "HORA_TIMEOUT", "s");
  add(Takes::on_off, "stall-check =HORA_STALL_WARNING", "",
      "As --stall-warning 0, where it is off.", [this](const Values& values) {
        if (values[0] == "off") return set_setting("HORA_STALL_WARNING", "0");
        if (values[0] != "on") throw Refused{"expected on or off"};
      });
  add(Takes::value, "binding-args =binding", "\"ARGS\"",
      "Arguments of mpirun that bind ranks to cores, in place of --binding.",
      [this](const Values& values) {
        const auto words = or_refuse(split_words(values[0]));
        options_.binding = Binding::none;
        options_.mpi_args.insert(options_.mpi_args.end(), words.begin(), words.end());
      });
}

CLI::Option* Flags::pass_on(Takes takes, const std::string& names, std::string value,
                            const std::string& notice) {
  const std::string flag = "--" + names.substr(0, names.find(' '));
  const auto set = [this, flag, notice](Values values) {
    if (!notice.empty()) note(flag + notice);
    if (flag == "--tune") values[0] = absolute_paths(values[0]);
    // Parameters of mpirun's ssh, in whose place horarun starts its agents.
    if (values.size() == 2 &&
        (values[0] == "plm_rsh_no_tree_spawn" || values[0] == "plm_ssh_no_tree_spawn")) {
      return note(values[0] + " changes nothing: horarun reaches each host itself");
    }
    if (values.size() == 2 && (values[0] == "plm_rsh_args" || values[0] == "plm_ssh_args")) {
      const auto words = split_words(values[1]).value_or(Values());
      const bool names_port = words.size() == 2 && words[0] == "-p";
      const auto port = parse_integer(names_port ? words[1] : "", 1, 65535);
      if (!port) {
        throw Refused{
            "ssh's port is --ssh-port, its key --ssh-identity-file; other options belong into "
            "~/.ssh/config"};
      }
      options_.ssh_port = *port;
      return note(values[0] + ": taken as --ssh-port " + words[1]);
    }
    options_.mpi_args.push_back(flag);
    options_.mpi_args.insert(options_.mpi_args.end(), values.begin(), values.end());
  };
  return add(takes, names + " =mpi-args", std::move(value), "Goes on to mpirun.", set)->take_all();
}

void Flags::add_mpiruns() {
  for (const char* const name : {"mca", "gmca", "omca", "prtemca", "pmixmca"}) {
    pass_on(Takes::pair, name, "KEY VALUE");
  }
  pass_on(Takes::value, "prefix", "FOLDER");
  pass_on(Takes::value, "tune am", "FILE");
  pass_on(Takes::value, "stdin", "RANK");
  const char* const in_verbose = ": what mpirun prints is shown with --verbose alone";
  pass_on(Takes::value, "display", "WHAT", in_verbose);
  pass_on(Takes::nothing, "display-map", "", in_verbose);
  pass_on(Takes::nothing, "display-allocation", "", in_verbose);

  add(Takes::value, "bind-to =binding", "OBJECT", "As --binding.", [this](const Values& values) {
    const std::string object = values[0].substr(0, values[0].find(':'));
    const bool domain = object == "numa" || object == "socket" || object == "package";
    if (object != "none" && object != "core" && !domain) {
      throw Refused{
          "expected none, core, numa or socket; for others --binding none --mpi-args "
          "\"--bind-to ...\""};
    }
    if (domain && object != "numa") {
      note("--bind-to " + object + ": ranks are bound to NUMA domains (--binding numa)");
    }
    options_.binding = domain ? Binding::numa : object == "none" ? Binding::none : Binding::cores;
  });
  const auto bind = [this](const char* name, std::string help, Binding binding) {
    add(Takes::nothing, std::string(name) + " =binding", "", std::move(help),
        [this, binding](const Values&) { options_.binding = binding; });
  };
  bind("bind-to-none", "As --binding none.", Binding::none);
  bind("bind-to-core", "As --binding core.", Binding::cores);
  add(Takes::value, "map-by", "slot|ppr:N:node", "As nothing, or as --nproc-per-node.",
      [this](const Values& values) { set_map_by(options_, values[0]); });
  add(Takes::value, "rank-by", "slot", "", [](const Values& values) {
    if (values[0] != "slot" && values[0] != "core") {
      throw Refused{"ranks are numbered host by host: expected slot"};
    }
  });
  add(Takes::nothing, "pernode =nproc-per-node", "", "As --nproc-per-node 1.",
      [this](const Values&) { options_.ranks_per_host = 1; });
  add(Takes::nothing, "tag-output l prepend-rank =prefix-output", "", "As --prefix-output.",
      [this](const Values&) { options_.prefix_output = Switch::on; });
  add(Takes::value, "output =prefix-output", "tag", "As --prefix-output.",
      [this](const Values& values) {
        for (const std::string_view word : split(values[0], ',')) {
          if (word != "tag" && word != "rank") {
            throw Refused{"expected tag; files are written by --output-filename FOLDER"};
          }
        }
        options_.prefix_output = Switch::on;
      });
  add(Takes::pair, "genv env =x", "NAME VALUE", "As -x.", [this](const Values& values) {
    forward_variable(values[0] + "=" + values[1]);
  })->take_all();
  add(Takes::value, "genvlist envlist =x", "NAME,...", "As -x.", [this](const Values& values) {
    for (const std::string_view name : split(values[0], ',')) {
      if (name.find('=') != name.npos) throw Refused{"expected names with commas between them"};
      forward_variable(std::string(trimmed(name)));
    }
  })->take_all();
}

void Flags::add_torchruns() {
  add(Takes::value, "rdzv-endpoint =rendezvous", "HOST:PORT", "As --rendezvous tcp://HOST:PORT.",
      [this](const Values& values) { options_.rendezvous = or_refuse(parse_endpoint(values[0])); });
  // Two halves of one endpoint.
  add(Takes::value, "master-addr", "HOST", "The address of --rendezvous.",
      [this](const Values& values) {
        const std::uint16_t port = options_.rendezvous ? options_.rendezvous->port : kMasterPort;
        options_.rendezvous = or_refuse(parse_endpoint(values[0]));
        options_.rendezvous->port = port;
      });
  add(Takes::value, "master-port", "PORT", "The port of --rendezvous.",
      [this](const Values& values) {
        const int port = or_refuse(parse_integer(values[0], 0, 65535));
        if (!options_.rendezvous) options_.rendezvous.emplace();
        options_.rendezvous->port = static_cast<std::uint16_t>(port);
      });
  add(Takes::value, "rdzv-backend", "c10d|static", "", [](const Values& values) {
    if (values[0] != "c10d" && values[0] != "static") {
      throw Refused{
          "nodes meet at an address or in a shared folder: --rendezvous tcp://HOST:PORT or "
          "file:///FOLDER"};
    }
  });
  add(Takes::value, "max-restarts", "N", "", [this](const Values& values) {
    if (values[0] != "0") note("--max-restarts: a failed job is not restarted");
  });
}

void Flags::add_ignored() {
  for (const Ignored& each : kIgnored) {
    add(taken_after(each.value), each.names, each.value, "", [this, &each](const Values&) {
      if (*each.notice != '\0') note(place_ + " changes nothing: " + each.notice);
    });
  }
}

void Flags::add_refused() {
  for (const auto& [names, advice] : kRefusedFlags) {
    add(Takes::nothing, fmt::format("{} ={}", names, kRefused), "", "",
        [this, advice = advice](const Values&) { refuse(place_, "", "not supported", advice); });
  }
}

}  // namespace hora::launch
