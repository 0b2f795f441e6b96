/* tide.hpp: tide.h for C++. */
#pragma once
extern "C" {
#include "tide.h"
}
