// Stands for the file that snippets_test.sh makes of the documentation's blocks of code. It is never built: the test
// takes its flags from compile_commands.json.
#include "tests/install/snippets/fixtures.h"
