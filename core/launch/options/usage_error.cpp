#include "core/launch/options/usage_error.h"

#include <hora/printable.h>

namespace hora::launch {

std::string to_text(const UsageError& error) {
  std::string text = printable(error.place);
  if (!error.value.empty()) text += (text.empty() ? "" : " ") + in_quotes(error.value);
  if (!text.empty()) text += ": ";
  text += printable(error.problem);
  if (!error.advice.empty()) text += "; " + printable(error.advice);
  return text;
}

}  // namespace hora::launch
