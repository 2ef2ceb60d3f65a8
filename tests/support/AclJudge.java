import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import kafka.security.authorizer.AclAuthorizer;
import kafka.security.authorizer.AclEntry;
import kafka.zk.AclChangeNode;
import kafka.zk.ExtendedAclChangeStore;
import kafka.zk.LiteralAclChangeStore;
import kafka.zk.ResourceZNode;
import kafka.zk.ZkAclStore;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Apache Kafka's AclAuthorizer, asked line by line. Columns are separated by tabs; "-" is null.
 *
 * new    ALLOW_IF_NONE                          forgets all ACLs; no answer
 * acls   TYPE PATTERN NAME JSON                 sets the ACLs of a pattern; no answer
 * may    PRINCIPAL HOST OPERATION TYPE NAME     true or false
 * any    PRINCIPAL HOST OPERATION TYPE          true or false
 * find   TYPE NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION   number of ACLs that pass
 * write  TYPE PATTERN NAME JSON                 path, payload, path of the notice, its payload
 */
public class AclJudge {
    private static AclAuthorizer authorizer;

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "new":
                    authorizer = new AclAuthorizer();
                    Method set = AclAuthorizer.class.getDeclaredMethod(
                        "shouldAllowEveryoneIfNoAclIsFound_$eq", boolean.class);
                    set.setAccessible(true);
                    set.invoke(authorizer, Boolean.parseBoolean(words[1]));
                    break;
                case "acls":
                    authorizer.updateCache(
                        pattern(words), new AclAuthorizer.VersionedAcls(entries(words[4]), 1));
                    break;
                case "may":
                    out.println(may(words));
                    break;
                case "any":
                    out.println(authorizer.authorizeByResourceType(
                        context(words[1], words[2]), AclOperation.fromString(words[3]),
                        ResourceType.fromString(words[4])) == AuthorizationResult.ALLOWED);
                    break;
                case "find":
                    out.println(find(words));
                    break;
                default:
                    out.println(write(words));
            }
        }
        out.flush();
    }

    private static ResourcePattern pattern(String[] words) {
        return new ResourcePattern(
            ResourceType.fromString(words[1]), words[3], PatternType.fromString(words[2]));
    }

    private static scala.collection.immutable.Set<AclEntry> entries(String json) {
        return AclEntry.fromBytes(json.getBytes(StandardCharsets.UTF_8));
    }

    private static boolean may(String[] words) throws Exception {
        ResourcePattern resource = new ResourcePattern(
            ResourceType.fromString(words[4]), words[5], PatternType.LITERAL);
        Action action =
            new Action(AclOperation.fromString(words[3]), resource, 1, false, false);
        List<AuthorizationResult> results = authorizer.authorize(
            context(words[1], words[2]), Collections.singletonList(action));
        return results.get(0) == AuthorizationResult.ALLOWED;
    }

    private static int find(String[] words) {
        AclBindingFilter filter = new AclBindingFilter(
            new ResourcePatternFilter(
                ResourceType.fromString(words[1]), text(words[2]), PatternType.fromString(words[3])),
            new AccessControlEntryFilter(
                text(words[4]), text(words[5]), AclOperation.fromString(words[6]),
                AclPermissionType.fromString(words[7])));
        List<AclBinding> found = new ArrayList<>();
        authorizer.acls(filter).forEach(found::add);
        return found.size();
    }

    private static String text(String word) {
        return word.equals("-") ? null : word;
    }

    private static String write(String[] words) {
        ResourcePattern pattern = pattern(words);
        ZkAclStore store = ZkAclStore.apply(pattern.patternType());
        AclChangeNode notice = pattern.patternType() == PatternType.LITERAL
            ? LiteralAclChangeStore.createChangeNode(pattern)
            : ExtendedAclChangeStore.createChangeNode(pattern);
        return store.path(pattern.resourceType(), pattern.name()) + "\t"
            + new String(ResourceZNode.encode(entries(words[4])), StandardCharsets.UTF_8) + "\t"
            + notice.path() + "\t" + new String(notice.bytes(), StandardCharsets.UTF_8);
    }

    private static AuthorizableRequestContext context(String principal, String host)
            throws Exception {
        KafkaPrincipal parsed = SecurityUtils.parseKafkaPrincipal(principal);
        InetAddress address = InetAddress.getByName(host);
        return new AuthorizableRequestContext() {
            public String listenerName() { return "PLAINTEXT"; }
            public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
            public KafkaPrincipal principal() { return parsed; }
            public InetAddress clientAddress() { return address; }
            public int requestType() { return 0; }
            public int requestVersion() { return 0; }
            public String clientId() { return ""; }
            public int correlationId() { return 0; }
        };
    }
}
