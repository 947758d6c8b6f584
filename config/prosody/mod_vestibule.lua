-- mod_vestibule: XMPP streams that Vestibule forwards, with the client's own address.
--
-- Opens ports of its own on which every connection must begin with a PROXY protocol header (version 1
-- or 2) from a trusted address. What follows the header is an ordinary client or server stream: it is
-- handed to mod_c2s or mod_s2s. The module does for such a stream what Prosody cannot know by itself:
--
--   * its address and port are the client's, for logs, limits and bans;
--   * when the header says that the client spoke TLS, the stream counts as secure: logins are offered,
--     and STARTTLS is not. Without that (a stream that Vestibule passes through undecrypted)
--     Prosody's own STARTTLS and certificates do their usual work;
--   * with vestibule_channel_binding the SCRAM-*-PLUS logins are offered, bound to the TLS connection
--     between the client and Vestibule, whose values arrive in the header;
--   * a failed login is logged with the client's address.
--
-- For Prosody 0.12 and later. Options, all global:
--
--   vestibule_ports            = { 5322 }   client streams; nothing listens unless this is set
--   vestibule_s2s_ports        = { 5369 }   server streams; the same
--   vestibule_interfaces       = { "127.0.0.1" }     (vestibule_s2s_interfaces) default: loopback
--   vestibule_trusted_proxies  = { "127.0.0.1", "::1" }   addresses or networks (CIDR) of Vestibule
--   vestibule_v1_is_secure     = false      version 1 cannot tell: do all its clients come over TLS?
--   vestibule_channel_binding  = false      needs "binding" in Vestibule's proxy_tlvs
--   vestibule_header_timeout   = 10         seconds in which the header must be complete

module:set_global();

local portmanager = require "core.portmanager";
local get_sasl_handler = require "core.usermanager".get_sasl_handler;
local iplib = require "util.ip";
local net = require "util.net";
local timer = require "util.timer";

local SIGNATURE_V2 = "\r\n\r\n\0\r\nQUIT\n";
local HEAD_V2 = #SIGNATURE_V2 + 4; -- signature, version and command, family, length
local LINE_V1_MAX = 107; -- the longest line that the specification knows, with its CRLF
local BODY_V2_MAX = 4096;

local TLV_CRC32C, TLV_UNIQUE_ID, TLV_SSL = 0x03, 0x05, 0x20;
-- Types for private use. Vestibule puts there what a SASL login can be bound to.
local TLV_BINDINGS = {
	["tls-exporter"] = 0xE0; -- RFC 9266: 32 bytes of EXPORTER-Channel-Binding
	["tls-server-end-point"] = 0xE1; -- RFC 5929: hash of the certificate that the client saw
};

local header_timeout = module:get_option_number("vestibule_header_timeout", 10);
local v1_is_secure = module:get_option_boolean("vestibule_v1_is_secure", false);
local channel_binding = module:get_option_boolean("vestibule_channel_binding", false);
local trusted = {};

for address in module:get_option_set("vestibule_trusted_proxies", { "127.0.0.1", "::1" }) do
	local ip, bits = iplib.parse_cidr(address);
	if ip then
		table.insert(trusted, { ip = ip; bits = bits });
	else
		module:log("error", "vestibule_trusted_proxies: %q is neither an address nor a network", address);
	end
end

local function is_trusted(address)
	local ip = iplib.new_ip(address);
	for _, network in ipairs(ip and trusted or {}) do
		if ip.proto == network.ip.proto and iplib.match(ip, network.ip, network.bits) then return true; end
	end
	return false;
end

--- PROXY headers

local function uint16(s, at)
	local high, low = s:byte(at, at + 1);
	return high * 256 + low;
end

-- Castagnoli's CRC, which guards a version 2 header; arithmetic only, since Lua 5.1 has no bit operators.
local function xor(a, b)
	local result, bit = 0, 1;
	while a > 0 or b > 0 do
		if a % 2 ~= b % 2 then result = result + bit; end
		a, b, bit = math.floor(a / 2), math.floor(b / 2), bit * 2;
	end
	return result;
end

local crc_table;
local function crc32c(s)
	if not crc_table then
		crc_table = {};
		for i = 0, 255 do
			local c = i;
			for _ = 1, 8 do
				c = c % 2 == 1 and xor(0x82F63B78, math.floor(c / 2)) or math.floor(c / 2);
			end
			crc_table[i] = c;
		end
	end
	local crc = 0xFFFFFFFF;
	for i = 1, #s do
		crc = xor(crc_table[xor(crc % 256, s:byte(i))], math.floor(crc / 256));
	end
	return 0xFFFFFFFF - crc;
end

-- Splits type-length-value entries into a table by type; nil if an entry reaches over the end.
-- The second result says where the value of the checksum begins.
local function read_tlvs(s)
	local tlvs, at, crc_at = {}, 1, nil;
	while at <= #s do
		if at + 2 > #s then return nil; end
		local kind, len = s:byte(at), uint16(s, at + 1);
		if at + 2 + len > #s then return nil; end
		tlvs[kind] = s:sub(at + 3, at + 2 + len);
		if kind == TLV_CRC32C then crc_at = at + 3; end
		at = at + 3 + len;
	end
	return tlvs, crc_at;
end

-- Each parser returns the header as a table and the bytes behind it; nil when it is incomplete;
-- false and a reason when it is refused.
local function parse_v1(buffer)
	local line_end = buffer:sub(1, LINE_V1_MAX):find("\r\n", 1, true);
	if not line_end then
		if #buffer >= LINE_V1_MAX then return false, "line too long"; end
		return nil;
	end
	local family, source, destination, source_port, destination_port =
		buffer:sub(1, line_end - 1):match("^PROXY (TCP[46]) (%S+) (%S+) (%d+) (%d+)$");
	-- "UNKNOWN" is refused too: a stream without an address is of no use to anybody.
	if not family then return false, "not a line with TCP4 or TCP6 addresses"; end
	local size = family == "TCP4" and 4 or 16;
	local packed, packed_destination = net.pton(source), net.pton(destination);
	source_port, destination_port = tonumber(source_port), tonumber(destination_port);
	if not packed or #packed ~= size or not packed_destination or #packed_destination ~= size
	or source_port > 65535 or destination_port > 65535 then
		return false, "bad address or port";
	end
	return { ip = source; port = source_port; secure = v1_is_secure; tlvs = {} }, buffer:sub(line_end + 2);
end

local function parse_v2(buffer)
	if #buffer < HEAD_V2 then return nil; end
	local command, family = buffer:byte(13, 14);
	local len = uint16(buffer, 15);
	-- LOCAL (0x20) is a proxy's own health check: nobody's stream.
	if command ~= 0x21 then return false, "not a version 2 PROXY command"; end
	local size = family == 0x11 and 4 or family == 0x21 and 16;
	if not size then return false, "not TCP over IPv4 or IPv6"; end
	if len < 2 * size + 4 or len > BODY_V2_MAX then return false, "bad length"; end
	if #buffer < HEAD_V2 + len then return nil; end

	local body = buffer:sub(HEAD_V2 + 1, HEAD_V2 + len);
	local tlvs, crc_at = read_tlvs(body:sub(2 * size + 5));
	if not tlvs then return false, "a TLV is cut off"; end
	if crc_at then
		local at = HEAD_V2 + 2 * size + 4 + crc_at;
		local sum = tlvs[TLV_CRC32C];
		if #sum ~= 4 then return false, "bad checksum"; end
		local zeroed = buffer:sub(1, at - 1) .. "\0\0\0\0" .. buffer:sub(at + 4, HEAD_V2 + len);
		if crc32c(zeroed) ~= uint16(sum, 1) * 65536 + uint16(sum, 3) then return false, "wrong checksum"; end
	end
	local ssl = tlvs[TLV_SSL];
	return {
		ip = net.ntop(body:sub(1, size));
		port = uint16(body, 2 * size + 1);
		secure = ssl ~= nil and #ssl >= 5 and ssl:byte(1) % 2 == 1; -- lowest bit: over TLS
		tlvs = tlvs;
	}, buffer:sub(HEAD_V2 + len + 1);
end

local function parse(buffer)
	if buffer:sub(1, #SIGNATURE_V2) == SIGNATURE_V2:sub(1, #buffer) then return parse_v2(buffer); end
	if buffer:sub(1, 6) == ("PROXY "):sub(1, #buffer) then return parse_v1(buffer); end
	return false, "no header";
end

--- Channel binding

local function bindings_of(header)
	if not (channel_binding and header.secure) then return nil; end
	local bindings = {};
	for name, kind in pairs(TLV_BINDINGS) do
		local value = header.tlvs[kind];
		if value and #value >= 16 then bindings[name] = value; end
	end
	return next(bindings) and bindings;
end

-- Makes a SASL handler check the client's binding. The closures stay with the handler's profile, so a
-- second attempt on the same stream has them, too.
local function bind(handler, bindings)
	if not (handler and handler.add_cb_handler and handler.mechs) then return nil; end
	for name, value in pairs(bindings) do
		handler:add_cb_handler(name, function () return value; end);
	end
	return handler;
end

--- Handing over

local pending = {}; -- by connection: what came of its header, and the timer that ends the wait

local function finish(conn)
	local state = pending[conn];
	pending[conn] = nil;
	if state then timer.stop(state.timer); end
end

local function refuse(conn, why)
	finish(conn);
	module:log("warn", "Connection from %s refused: %s", conn:ip(), why);
	conn:close();
end

-- A listener for one of the ports; `name` is the service that gets the stream ("c2s", "s2s").
local function listener_for(name)
	local sessions = module:shared("/*/" .. name .. "/sessions");
	local listener = {};

	function listener.onconnect(conn)
		if pending[conn] then return; end
		if not is_trusted(conn:ip()) then
			module:log("warn", "Connection from %s refused: not in vestibule_trusted_proxies", conn:ip());
			return conn:close();
		end
		pending[conn] = {
			buffer = "";
			timer = timer.add_task(header_timeout, function ()
				if pending[conn] then refuse(conn, "no complete PROXY header in time"); end
			end);
		};
	end

	function listener.onincoming(conn, data)
		local state = pending[conn];
		if not (state and data) then return; end
		state.buffer = state.buffer .. data;
		local header, rest = parse(state.buffer);
		if header == nil then return; end
		if header == false then return refuse(conn, "bad PROXY header: " .. rest); end
		local service = portmanager.get_service(name);
		if not service then return refuse(conn, "mod_" .. name .. " is not loaded"); end
		finish(conn);

		local proxy = conn:ip();
		function conn.ip() return header.ip; end
		function conn.port() return header.port; end
		function conn.clientport() return header.port; end
		if header.secure then conn.starttls = false; end -- mod_tls offers none then

		conn:setlistener(service.listener);
		service.listener.onconnect(conn);
		local session = sessions[conn];
		if session then
			if header.secure then session.secure = true; end
			session.vestibule = { id = header.tlvs[TLV_UNIQUE_ID]; bindings = bindings_of(header) };
			session.log("info", "Client is %s port %d, through Vestibule at %s (%s)%s", header.ip, header.port,
				proxy, session.vestibule.id and session.vestibule.id:gsub("[^%g]", "?") or "no id",
				header.secure and ", over TLS" or "");
		end
		if rest ~= "" then service.listener.onincoming(conn, rest); end
	end

	function listener.ondisconnect(conn) finish(conn); end
	listener.ondetach = listener.ondisconnect;
	return listener;
end

-- Private: without vestibule_interfaces only loopback listens.
module:provides("net", { name = "vestibule"; listener = listener_for("c2s"); private = true; default_ports = {} });
module:provides("net", { name = "vestibule_s2s"; listener = listener_for("s2s"); private = true; default_ports = {} });

function module.add_host(host)
	local disabled = host:get_option_set("disable_sasl_mechanisms", {});

	-- After mod_saslauth: for each SCRAM mechanism that it offers, the one with channel binding.
	host:hook("stream-features", function (event)
		local session, mechanisms = event.origin, event.features:get_child("mechanisms", "urn:ietf:params:xml:ns:xmpp-sasl");
		local bindings = session.vestibule and session.vestibule.bindings;
		if not (bindings and mechanisms and bind(session.sasl_handler, bindings)) then return; end
		local plus = {};
		for mechanism in mechanisms:childtags("mechanism") do
			local name = mechanism:get_text() .. "-PLUS";
			if session.sasl_handler.mechs[name] and not disabled:contains(name) then table.insert(plus, name); end
		end
		for _, name in ipairs(plus) do
			mechanisms:text_tag("mechanism", name);
		end
		if plus[1] and not event.features:get_child("sasl-channel-binding", "urn:xmpp:sasl-cb:0") then
			event.features:tag("sasl-channel-binding", { xmlns = "urn:xmpp:sasl-cb:0" }); -- XEP-0440
			for name in pairs(bindings) do
				event.features:tag("channel-binding", { type = name }):up();
			end
			event.features:up();
		end
	end, -10);

	-- Before mod_saslauth, which takes a new handler for a login that starts over.
	host:hook("stanza/urn:ietf:params:xml:ns:xmpp-sasl:auth", function (event)
		local session = event.origin;
		local bindings = session.type == "c2s_unauthed" and session.vestibule and session.vestibule.bindings;
		if bindings and (not session.sasl_handler or session.sasl_handler.selected) then
			local handler = get_sasl_handler(host.host, session);
			session.sasl_handler = bind(handler, bindings) or handler;
		end
	end, 10);

	host:hook("authentication-failure", function (event)
		local session = event.session;
		if session.vestibule then
			session.log("info", "Failed login from %s port %d (%s)", session.ip, session.conn:clientport(), event.condition);
		end
	end);
end
