// With this a program is linked with the C library.
package main

// #include <stdlib.h>
import "C"

func init() { C.free(C.malloc(1)) }
