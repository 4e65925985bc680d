// Does not compile where warnings are errors: hora would end where it has begun.
#include <hora/hora.h>

void f() {
  hora::init();
}
