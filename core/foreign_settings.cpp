#include <hora/printable.h>

#include <algorithm>

#include "core/base/settings.h"

namespace hora::internal {
namespace {

constexpr std::string_view kPrefix = "HORA_";

/// Without the prefix, each between spaces: what Environment Modules, Lmod, EasyBuild and Spack are
/// used to set, by hand or by template, to where a package lies.
constexpr std::string_view kOfPackages =
    " ARCH BASE BASEDIR BIN BINDIR BIN_DIR BIN_PATH CMAKE_DIR CONFIG DATA DATADIR DIR DOC"
    " DOCDIR DOC_DIR HOME INC INCDIR INCLUDE INCLUDEDIR INCLUDES INCLUDE_DIR INCLUDE_DIRS"
    " INCLUDE_PATH INC_DIR INSTALL INSTALLDIR INSTALL_DIR INSTALL_PATH INSTALL_PREFIX LIB"
    " LIBDIR LIBRARIES LIBRARY LIBRARY_DIR LIBRARY_DIRS LIBRARY_PATH LIBS LIB_DIR LIB_PATH"
    " LICENSE LICENSE_FILE LOADED MAN MANDIR MANPATH MODULE MODULEFILE MODULEPATH MODULE_FILE"
    " MODULE_NAME MODULE_PATH MODULE_VERSION NAME PATH PKGCONFIG PKG_CONFIG_PATH PREFIX"
    " RELEASE ROOT ROOTDIR ROOT_DIR SHARE SOURCE SOURCE_DIR SRC SRCDIR SRC_DIR TOP TOPDIR VER"
    " VERSION"
    " ";

/// Environment Modules counts by variables of such names how often a path was added.
constexpr std::string_view kCounterSuffix = "_modshare";

bool names_package_part(std::string_view variable) {
  if (!variable.starts_with(kPrefix)) return false;
  variable.remove_prefix(kPrefix.size());
  if (variable.ends_with(kCounterSuffix)) variable.remove_suffix(kCounterSuffix.size());
  return variable.find(' ') == variable.npos &&
         kOfPackages.find(' ' + std::string(variable) + ' ') != kOfPackages.npos;
}

/// Calls body(name) for each name between commas, until it returns false.
template <class Body>
bool all_names(std::string_view names, Body&& body) {
  for (;;) {
    const std::size_t comma = std::min(names.find(','), names.size());
    if (!body(names.substr(0, comma))) return false;
    if (comma == names.size()) return true;
    names.remove_prefix(comma + 1);
  }
}

bool lists(std::string_view names, std::string_view variable) {
  return !all_names(names, [&](std::string_view name) { return name != variable; });
}

bool is_setting(std::string_view variable) {
  const auto settings = setting_descriptions();
  return std::ranges::find(settings, variable, &SettingDescription::variable) != settings.end();
}

bool is_name(std::string_view text) {
  const auto belongs = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return text.size() > kPrefix.size() && text.starts_with(kPrefix) &&
         std::ranges::all_of(text, belongs);
}

}  // namespace

bool is_foreign(std::string_view variable, std::string_view allowed) {
  return !is_setting(variable) && (names_package_part(variable) || lists(allowed, variable));
}

std::string allowed_unknown(std::span<const SettingAssignment> assignments) {
  const auto set =
      std::ranges::find(assignments, "HORA_ALLOW_UNKNOWN", &SettingAssignment::variable);
  return set == assignments.end() ? std::string() : set->value;
}

std::string wrong_with_foreign_names(std::string_view names) {
  std::string wrong;
  all_names(names, [&](std::string_view name) {
    if (is_name(name)) return true;
    wrong =
        in_quotes(name) + " is no name of letters, digits and underscores that begins with HORA_";
    return false;
  });
  return wrong;
}

std::vector<SettingAssignment> without_foreign(std::span<const SettingAssignment> assignments,
                                               std::string_view allowed_by_rank_0) {
  const std::string allowed = allowed_unknown(assignments);
  std::vector<SettingAssignment> ours;
  for (const SettingAssignment& assignment : assignments) {
    const std::string& name = assignment.variable;
    if (!is_foreign(name, allowed) && !is_foreign(name, allowed_by_rank_0)) {
      ours.push_back(assignment);
    }
  }
  return ours;
}

}  // namespace hora::internal
