package ns

// Cookie returns the number that id falls back to.
var Cookie = cookie
