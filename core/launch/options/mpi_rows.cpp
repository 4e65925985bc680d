// Rows of the option table: flags of mpirun (Open MPI 4.1 and 5, MPICH) beyond those whose spelling
// hora shares.
#include <hora/printable.h>

#include <filesystem>
#include <optional>

#include "core/launch/options/option_table.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

using Unexpected = tl::unexpected<std::string>;

/// Parameters of mpirun's ssh, in whose place horarun starts its agents. None: `key` is another.
std::optional<Applied> of_remote_shell(LaunchOptions& options, std::string_view key,
                                       std::string_view value) {
  if (key == "plm_rsh_no_tree_spawn" || key == "plm_ssh_no_tree_spawn") {
    options.notices.push_back(std::string(key) +
                              " changes nothing: horarun reaches each host itself");
    return Applied();
  }
  if (key != "plm_rsh_args" && key != "plm_ssh_args") return std::nullopt;
  const auto words = split_words(value).value_or(std::vector<std::string>());
  const auto port = parse_integer(words.size() == 2 && words[0] == "-p" ? words[1] : "", 1, 65535);
  if (!port) {
    return Unexpected(
        "ssh's port is --ssh-port, its key --ssh-identity-file; other options belong into "
        "~/.ssh/config");
  }
  options.ssh_port = *port;
  options.notices.push_back(std::string(key) + ": taken as --ssh-port " + words[1]);
  return Applied();
}

/// Goes on to mpirun: "--mca KEY VALUE".
OptionRow passed_on(std::string name, std::vector<std::string> spellings, std::string value,
                    OptionKind kind) {
  OptionRow row;
  row.name = name;
  row.spellings = std::move(spellings);
  row.value = std::move(value);
  row.help = "Goes on to mpirun.";
  row.kind = kind;
  row.listing = Listing::repeated;
  row.sets = "mpi-args";
  row.apply = [name, kind](LaunchOptions& options, std::string_view text) -> Applied {
    const std::size_t end = kind == OptionKind::pair ? text.find(' ') : text.npos;
    if (end != text.npos) {
      const auto applied = of_remote_shell(options, text.substr(0, end), text.substr(end + 1));
      if (applied) return *applied;
    }
    options.mpi_args.push_back("--" + name);
    if (kind != OptionKind::flag) options.mpi_args.emplace_back(text.substr(0, end));
    if (end != text.npos) options.mpi_args.emplace_back(text.substr(end + 1));
    return {};
  };
  return row;
}

/// The same of files of parameters, which mpirun runs without where they are missing.
OptionRow tuned() {
  OptionRow row = passed_on("tune", {"am"}, "FILE", OptionKind::value);
  row.apply = [pass_on = row.apply](LaunchOptions& options, std::string_view text) -> Applied {
    std::string files;
    for (const std::string_view file : split(text, ',')) {
      const auto content = read_input_file(std::string(file));
      if (!content) return Unexpected("the file " + in_quotes(file) + " " + content.error());
      files += (files.empty() ? "" : ",") + std::filesystem::absolute(file).string();
    }
    return pass_on(options, files);
  };
  return row;
}

/// The same of a flag by which mpirun prints something.
OptionRow displayed(std::string name, std::string value, OptionKind kind) {
  OptionRow row = passed_on(std::move(name), {}, std::move(value), kind);
  row.help = "Goes on to mpirun, whose output is shown with --verbose.";
  row.apply = [name = row.name, pass_on = row.apply](LaunchOptions& options,
                                                     std::string_view text) -> Applied {
    options.notices.push_back("--" + name + ": what mpirun prints is shown with --verbose alone");
    return pass_on(options, text);
  };
  return row;
}

Applied set_bind_to(LaunchOptions& options, std::string_view text) {
  const std::string_view object = text.substr(0, text.find(':'));
  if (object == "none") {
    options.binding = Binding::none;
  } else if (object == "core") {
    options.binding = Binding::cores;
  } else if (object == "numa" || object == "socket" || object == "package") {
    options.binding = Binding::numa;
    if (object != "numa") {
      options.notices.push_back("--bind-to " + std::string(object) +
                                ": ranks are bound to NUMA domains (--binding numa)");
    }
  } else {
    return Unexpected(
        "expected none, core, numa or socket; for others --binding none "
        "--mpi-args \"--bind-to ...\"");
  }
  return {};
}

Applied set_map_by(LaunchOptions& options, std::string_view text) {
  const auto parts = split(text, ':');
  std::size_t used = 1;
  if (parts.front() == "ppr" && parts.size() >= 3 && parts[2] == "node") {
    const auto number = parse_integer(parts[1], 1, kMostRanks);
    if (!number) return Unexpected("ppr: " + number.error());
    options.ranks_per_host = *number;
    used = 3;
  } else if (!parts.front().empty() && parts.front() != "slot" && parts.front() != "core") {
    return Unexpected("ranks are put host by host: expected slot or ppr:N:node");
  }
  for (const std::string_view modifier : std::span(parts).subspan(used)) {
    if (modifier == "OVERSUBSCRIBE" || modifier == "oversubscribe") {
      options.oversubscribe = true;
    } else if (modifier != "NOOVERSUBSCRIBE" && modifier != "nooversubscribe") {
      return Unexpected(
          "expected OVERSUBSCRIBE or nothing after it: cores are shared out by "
          "--binding");
    }
  }
  return {};
}

Applied set_rank_by(LaunchOptions&, std::string_view text) {
  if (text == "slot" || text == "core") return {};
  return Unexpected("ranks are numbered host by host: expected slot");
}

/// Open MPI 5's --output; of it, what hora has.
Applied set_output(LaunchOptions& options, std::string_view text) {
  for (const std::string_view word : split(text, ',')) {
    if (word != "tag" && word != "rank") {
      return Unexpected("expected tag; files are written by --output-filename FOLDER");
    }
  }
  options.prefix_output = Switch::on;
  return {};
}

Applied prefix_output(LaunchOptions& options, std::string_view) {
  options.prefix_output = Switch::on;
  return {};
}

Applied one_per_host(LaunchOptions& options, std::string_view) {
  options.ranks_per_host = 1;
  return {};
}

/// MPICH's -genv NAME VALUE.
Applied forward_pair(LaunchOptions& options, std::string_view text) {
  const std::size_t space = text.find(' ');
  return forward_variable(
      options, std::string(text.substr(0, space)) + "=" + std::string(text.substr(space + 1)));
}

/// MPICH's -genvlist NAME,NAME.
Applied forward_list(LaunchOptions& options, std::string_view text) {
  for (const std::string_view name : split(text, ',')) {
    if (name.find('=') != name.npos) return Unexpected("expected names with commas between them");
    if (const auto applied = forward_variable(options, trimmed(name)); !applied) return applied;
  }
  return {};
}

Apply bound_to(Binding binding) {
  return [binding](LaunchOptions& options, std::string_view) -> Applied {
    options.binding = binding;
    return {};
  };
}

OptionRow variables(std::string name, std::string spelling, std::string value, OptionKind kind,
                    Apply apply) {
  OptionRow row = translated(std::move(name), {std::move(spelling)}, std::move(value), "As -x.",
                             "x", std::move(apply));
  row.kind = kind;
  row.merges = true;
  row.is_secret = true;
  row.listing = Listing::repeated;
  return row;
}

}  // namespace

std::vector<OptionRow> mpi_rows() {
  using enum OptionKind;
  const std::string in_mpi_args = "write it into --mpi-args, with --binding none";
  const std::string one_program = "a job has one program";
  return {
      passed_on("mca", {}, "KEY VALUE", pair),
      passed_on("gmca", {}, "KEY VALUE", pair),
      passed_on("omca", {}, "KEY VALUE", pair),
      passed_on("prtemca", {}, "KEY VALUE", pair),
      passed_on("pmixmca", {}, "KEY VALUE", pair),
      passed_on("prefix", {}, "FOLDER", value),
      tuned(),
      passed_on("stdin", {}, "RANK", value),
      displayed("display", "WHAT", value),
      displayed("display-map", "", flag),
      displayed("display-allocation", "", flag),

      translated("bind-to", {}, "OBJECT", "As --binding.", "binding", set_bind_to),
      translated("bind-to-none", {}, "", "As --binding none.", "binding", bound_to(Binding::none)),
      translated("bind-to-core", {}, "", "As --binding core.", "binding", bound_to(Binding::cores)),
      translated("map-by", {}, "slot|ppr:N:node", "As nothing, or as --nproc-per-node.", "map-by",
                 set_map_by),
      translated("rank-by", {}, "slot", "", "rank-by", set_rank_by),
      translated("pernode", {}, "", "As --nproc-per-node 1.", "nproc-per-node", one_per_host),
      translated("tag-output", {"l", "prepend-rank"}, "", "As --prefix-output.", "prefix-output",
                 prefix_output),
      translated("output", {}, "tag", "As --prefix-output.", "prefix-output", set_output),
      variables("genv", "env", "NAME VALUE", pair, forward_pair),
      variables("genvlist", "envlist", "NAME,...", value, forward_list),

      ignored("byslot", {}, "", ""),
      ignored("nooversubscribe", {}, "", ""),
      ignored("genvall", {"envall"}, "", ""),
      ignored("report-bindings", {"display-bindings"}, "", "the cores of ranks are always printed"),
      ignored("quiet", {"q"}, "", "horarun prints little without --verbose"),
      ignored("timestamp-output", {}, "", "lines of output have no time stamps"),
      ignored("merge-stderr-to-stdout", {}, "",
              "each stream of a rank is one of horarun's: redirect them there, by 2>&1"),
      ignored("use-hwthread-cpus", {}, "", "cores are shared out by --binding"),
      ignored("cpus-per-proc", {"cpus-per-rank"}, "N", "cores are shared out by --binding"),
      ignored("bycore", {}, "", "ranks are put host by host"),

      refused("path", {}, "FOLDERS", "name the program by its path, or add the folders to PATH"),
      refused("c", {}, "N", "the number of ranks is -np"),
      refused("bynode", {}, "", "ranks are put host by host: -H a:2,b:2 says how many on each"),
      refused("npersocket", {}, "N", "the number of ranks on a host is --nproc-per-node"),
      refused("nolocal", {}, "", "name the hosts by -H"),
      refused("rankfile", {"rf"}, "FILE", in_mpi_args),
      refused("cpu-set", {"cpu-list"}, "CORES",
              "start horarun with these cores (taskset -c CORES)"),
      refused("xterm", {}, "RANKS", "show single ranks by --ranks"),
      refused("app", {"configfile"}, "FILE", one_program),
      refused("preload-binary", {"s"}, "", "the program must be on all hosts"),
      refused("preload-files", {}, "FILES", "the files must be on all hosts"),
      refused("genvnone", {"envnone"}, "", "name the variables that ranks need by -x"),
      refused("launcher", {"bootstrap", "rmk"}, "NAME", in_mpi_args),
      refused("launcher-exec", {"bootstrap-exec"}, "PROGRAM", in_mpi_args),
      refused("prepend-pattern", {}, "PATTERN", "host:rank is put before lines by --prefix-output"),
  };
}

}  // namespace hora::launch
