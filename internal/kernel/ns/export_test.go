package ns

// Cookie is what the fallback of ID asks for.
var Cookie = cookie
