/// What a destructor can know of the exception that runs it.
#pragma once

#include <string>

namespace hora {

/// The text of the last Error made on this thread, as far as it fits, while that object lives:
/// while it unwinds the stack. Empty where there is none. Destructors cannot ask the language:
/// before a catch clause is entered, std::current_exception() is null.
std::string error_in_flight();

}  // namespace hora
