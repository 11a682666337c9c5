package api

import _ "embed" // for OpenAPI

// OpenAPI is the document of the agent's API, which the agent serves at
// PathOpenAPI.
//
//go:embed openapi.yaml
var OpenAPI []byte
