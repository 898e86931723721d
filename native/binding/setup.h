// Node-API with the settings of this addon.
#pragma once

// The only include of napi.h, so that every file sees it with the same settings.
#ifndef NAPI_VERSION
#define NAPI_VERSION 9
#endif
#ifndef NODE_ADDON_API_DISABLE_DEPRECATED
#define NODE_ADDON_API_DISABLE_DEPRECATED
#endif
#define NODE_ADDON_API_CPP_EXCEPTIONS
// Results are copied into arrays that V8 owns, by policy: see README.md.
#define NODE_API_NO_EXTERNAL_BUFFERS_ALLOWED
// While an environment is torn down JavaScript cannot receive exceptions any more.
#define NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS

#include <napi.h>
