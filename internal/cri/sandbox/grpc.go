package sandbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// mostBytes is the largest answer, as the kubelet has it (16 MiB): some 30,000 sandboxes.
const mostBytes = 16 << 20

// call makes a unary call of gRPC to a server on a unix socket, without TLS, and returns the message of its answer
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). If
// ctx ends, the server hears of it by the connection's end.
func call(ctx context.Context, socket, method string, message []byte) ([]byte, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		Protocols: protocols, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	defer t.CloseIdleConnections()
	target := &url.URL{Scheme: "http", Host: "localhost", Path: method}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(framed(message)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers with the HTTP status %s, so it speaks no gRPC", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostBytes+frame+1))
	if err != nil {
		return nil, err
	}
	if err := status(resp); err != nil { // known only behind the body, unless there is none
		return nil, err
	}
	return unframed(body)
}

// frame is how many bytes stand before a message: 0, which says that it is not compressed, and its length.
const frame = 5

func framed(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// unframed returns the only message of a body.
func unframed(body []byte) ([]byte, error) {
	switch {
	case len(body) < frame:
		return nil, io.ErrUnexpectedEOF
	case body[0] != 0:
		return nil, errors.New("its answer is compressed, for which nobody has asked")
	}
	size := int64(binary.BigEndian.Uint32(body[1:]))
	switch body = body[frame:]; {
	case size > mostBytes:
		return nil, fmt.Errorf("its answer has %d bytes; %d are the most", size, mostBytes)
	case size != int64(len(body)):
		return nil, fmt.Errorf("its answer should have %d bytes, and has %d", size, len(body))
	}
	return body, nil
}

// unimplemented is the status of a method that a server does not have.
const unimplemented = "12"

// status returns the error that an answer's status is: in its trailers or, if the answer has no body, in its headers.
func status(resp *http.Response) error {
	from := resp.Trailer
	if from.Get("Grpc-Status") == "" {
		from = resp.Header
	}
	code, text := from.Get("Grpc-Status"), from.Get("Grpc-Message")
	if plain, err := url.PathUnescape(text); err == nil {
		text = plain
	}
	switch code {
	case "0":
		return nil
	case "":
		return errors.New("its answer has no status of gRPC")
	case unimplemented:
		return fmt.Errorf("it does not speak CRI v1, or its CRI plugin is disabled: %.500s", text)
	}
	return fmt.Errorf("it answers with the status %.20s of gRPC: %.500s", code, text)
}
